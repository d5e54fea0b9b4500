"""Signed checkpoints of the chain, stored out of reach of its tables' owner.

A checkpoint at entry N covers the entries 1 to N: changing, removing or adding one of
them afterwards changes the hash at N. There is a file for each month of UTC. Files are
never changed or removed here: a checkpoint a minute takes 10 MB a month at most, so no
limit is needed.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from django.utils.crypto import salted_hmac

from apps.audit.verification import START

SALT = "poisonweb.audit.checkpoint"
TIME = "%Y-%m-%dT%H:%M:%SZ"
BEGIN = '{"at":'
# A checkpoint has at most 400 characters; a log line adds some around it.
LONGEST_LINE = 20_000
TAIL = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The chain's head at a time; `contradicts` is a checkpoint that disagreed."""

    at: datetime
    seq: int
    hash: bytes
    contradicts: int | None = None
    signature: str = field(default="", compare=False)

    def with_signature(self) -> Self:
        """Return a copy of the checkpoint, signed with the SECRET_KEY."""
        return type(self)(
            at=self.at,
            seq=self.seq,
            hash=self.hash,
            contradicts=self.contradicts,
            signature=self._expected_signature(),
        )

    @property
    def is_signed(self) -> bool:
        """Tell whether the checkpoint was signed with our SECRET_KEY."""
        expected = self._expected_signature().encode()
        return hmac.compare_digest(self.signature.encode("utf-8", "replace"), expected)

    @property
    def line(self) -> str:
        """Return the checkpoint as a line of JSON, with its signature."""
        return _json({**self._members(), "signature": self.signature})

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a line of a checkpoint file or a log; None if it has no checkpoint."""
        try:
            members, _ = json.JSONDecoder().raw_decode(text[text.index(BEGIN) :])
            at = datetime.strptime(members["at"], TIME).replace(tzinfo=UTC)
            contradicts = members.get("contradicts")
            return cls(
                at=at,
                seq=int(members["seq"]),
                hash=bytes.fromhex(members["hash"]),
                contradicts=None if contradicts is None else int(contradicts),
                signature=str(members["signature"]),
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None

    def agrees(self, hashes: Mapping[int, bytes]) -> bool:
        """Tell whether the audit chain still has this checkpoint's hash."""
        return self.hash == (START if self.seq == 0 else hashes.get(self.seq))

    def __str__(self) -> str:
        return f"the checkpoint of entry {self.seq} ({self.at:%Y-%m-%d %H:%M:%S} UTC)"

    def _expected_signature(self) -> str:
        """Compute the signature that the SECRET_KEY gives this checkpoint."""
        text = _json(self._members())
        return salted_hmac(SALT, text, algorithm="sha256").hexdigest()

    def _members(self) -> dict[str, object]:
        """Return what is signed of the checkpoint: time, seq, hash, contradiction."""
        members: dict[str, object] = {
            "at": self.at.strftime(TIME),
            "seq": self.seq,
            "hash": self.hash.hex(),
        }
        if self.contradicts is not None:
            members["contradicts"] = self.contradicts
        return members


def append(folder: Path, checkpoint: Checkpoint) -> None:
    """Append a checkpoint to the month's file; return once it is on the disk."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"checkpoints-{checkpoint.at:%Y-%m}.jsonl"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        # A line cut off by a full disk must not spoil this one.
        begin = "" if _ends_a_line(file) else "\n"
        os.write(file, f"{begin}{checkpoint.line}\n".encode("ascii"))
        os.fsync(file)
    finally:
        os.close(file)
    _sync(folder)


def newest(folder: Path) -> Checkpoint | None:
    """Return the last checkpoint of the newest file with a valid signature, or None."""
    files = sorted(folder.glob("checkpoints-*.jsonl"))
    if not files:
        return None
    with files[-1].open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        lines = file.read(TAIL).decode("ascii", "replace").splitlines()
    parsed = (Checkpoint.parse(line) for line in reversed(lines))
    return next((each for each in parsed if each and each.is_signed), None)


def read(path: Path) -> Iterator[Checkpoint]:
    """Yield all checkpoints in a file, signed or not, and ignore its other lines."""
    with path.open(encoding="utf-8", errors="replace") as file:
        while line := file.readline(LONGEST_LINE):
            if checkpoint := Checkpoint.parse(line):
                yield checkpoint


def _ends_a_line(file: int) -> bool:
    """Tell whether an open checkpoint file is empty or ends with a newline."""
    size = os.fstat(file).st_size
    return size == 0 or os.pread(file, 1, size - 1) == b"\n"


def _sync(folder: Path) -> None:
    """Flush a folder, so that a new checkpoint file's name is on the disk too."""
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _json(members: dict[str, object]) -> str:
    """Write a checkpoint as JSON without spaces: what is signed has one spelling."""
    return json.dumps(members, separators=(",", ":"))
