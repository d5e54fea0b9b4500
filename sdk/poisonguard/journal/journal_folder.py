"""The folder of the journals, which only this user may write to."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path

from poisonguard.errors import Full
from poisonguard.processes import kernel_process_facts

AUTO = "auto"
VARIABLE = "POISONGUARD_JOURNAL"
NO_ROOM = (ENOSPC, EDQUOT, EFBIG)


class UnusableFolder(Exception):
    """The folder cannot hold journals; the message says why, and what to do."""


def prepare(folder: Path | str) -> Path:
    """Return the journals' folder, made if needed; raise UnusableFolder, or Full."""
    if not kernel_process_facts.is_supported():
        raise UnusableFolder("Crashes are only attributed on Linux with /proc.")
    if folder != AUTO:
        return _created_and_checked(Path(folder))
    named = os.environ.get(VARIABLE)
    return _created_and_checked(Path(named)) if named else _first_usable()


def _first_usable() -> Path:
    """Return the first usable default folder for journals, or raise UnusableFolder."""
    problems = []
    for folder in _candidates():
        try:
            return _created_and_checked(folder)
        except UnusableFolder as problem:
            problems.append(str(problem))
    raise UnusableFolder(" ".join(problems))


def _candidates() -> Iterator[Path]:
    """Yield the default folders of journals, in memory where possible, best first."""
    own = f"poisonguard-{os.geteuid()}"
    memory = Path("/dev/shm")  # noqa: S108 - the folder in it is checked
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if memory.is_dir():
        yield memory / own
    if runtime:
        yield Path(runtime) / "poisonguard"
    yield Path(tempfile.gettempdir()) / own


def _created_and_checked(folder: Path) -> Path:
    """Create a private folder for journals, or raise UnusableFolder."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise Full(f"{folder} cannot be made: its disk is full.") from error
        raise UnusableFolder(
            f"{folder} cannot be made ({error}): name another one."
        ) from error
    status = folder.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise UnusableFolder(f"{folder} is a symbolic link: name the folder itself.")
    if status.st_uid != os.geteuid():
        raise UnusableFolder(
            f"{folder} belongs to another user (uid {status.st_uid}): name one inside "
            "of it, it will be made."
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnusableFolder(f"Others may write into {folder}: `chmod 700 {folder}`.")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise UnusableFolder(
            f"{folder} is read-only: make it writable or name another one."
        )
    return folder
