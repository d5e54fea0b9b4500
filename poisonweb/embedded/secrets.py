"""Files that only their owner may read."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex, token_urlsafe


def secret(path: Path, *, size: int = 32) -> str:
    """Return the secret in `path`; the first call generates it, of `size` bytes."""
    if not path.exists():
        draft = _draft(path, token_urlsafe(size))
        # A link does not replace a file: of two simultaneous callers, the first wins.
        with suppress(FileExistsError):
            path.hardlink_to(draft)
        draft.unlink()
    return path.read_text(encoding="utf-8")


def write_private(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, readable by its owner only."""
    _draft(path, text).replace(path)


def _draft(path: Path, text: str) -> Path:
    """Write text to a new file beside `path`, on the disk for certain; return it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{token_hex(4)}")
    opened = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(opened, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(opened)
    return draft
