"""What happened, as the consumers themselves saw it: one JSON line each.

A line about a message is written before anybody is told of it. A process killed between
the two handles that message again and writes another line about it, so the last line
about a message is the one that holds. Several processes write into one ledger.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Self

LONGEST_LINE = 4_096


class Unwritten(BaseException):
    """The ledger has no room for a line: that is no failure of the message at work."""


class What(StrEnum):
    """Handled: noted for redriven messages, and for those that were begun before."""

    PRODUCED = "produced"
    FAILED = "failed"
    FAILED_AGAIN = "failed again"
    HANDLED = "handled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One thing that happened; `redrive` is the header of a redriven message.

    There is no error where a message failed without a word, or in another process.
    """

    at: datetime
    what: What
    topic: str
    bookmark: str
    redrive: str = ""
    error: str = ""

    @classmethod
    def parse(cls, text: bytes) -> Self:
        told = json.loads(text)
        at, what = datetime.fromisoformat(told.pop("at")), What(told.pop("what"))
        return cls(at=at, what=what, **told)

    def to_json(self) -> bytes:
        members = {**asdict(self), "at": self.at.isoformat()}
        told = {name: value for name, value in members.items() if value}
        return json.dumps(told).encode() + b"\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """What the record must show for one topic, once all is at rest."""

    poisons: int
    recurrences: int
    confirmations: int


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._append(b"")

    def write(
        self,
        what: What,
        *,
        topic: str,
        bookmark: str,
        redrive: str = "",
        error: str = "",
    ) -> None:
        """Add a line; it outlives this process when this returns. Raises Unwritten."""
        line = Line(
            at=datetime.now(UTC),
            what=what,
            topic=topic,
            bookmark=bookmark,
            redrive=redrive,
            error=error,
        )
        try:
            self._append(line.to_json())
        except OSError as trouble:
            raise Unwritten(str(trouble)) from trouble

    def _append(self, text: bytes) -> None:
        with self.path.open("ab+") as file:
            # Nobody else must take what is being written for half a line.
            fcntl.flock(file, fcntl.LOCK_EX)
            _cut_half_a_line(file)
            file.write(text)

    def began(self) -> datetime | None:
        """Return the time of the first line."""
        first = next(read(self.path), None)
        return None if first is None else first.at


def _cut_half_a_line(file: BinaryIO) -> None:
    """Cut off what a kill or a full disk left: nothing was done on its word."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - LONGEST_LINE))
    end = file.read()
    file.truncate(size - len(end) + end.rfind(b"\n") + 1)


def read(path: Path) -> Iterator[Line]:
    with path.open("rb") as file:
        yield from map(Line.parse, file)


def tally(lines: Iterable[Line]) -> dict[str, Tally]:
    """Count by topic what the server must have on record.

    A redrive that was delivered twice is one; failed once, it is a recurrence.
    """
    last = {
        (line.topic, line.bookmark): line
        for line in lines
        if line.what is not What.PRODUCED
    }
    topics = sorted({topic for topic, _ in last})
    return {topic: _tally_of(topic, last.values()) for topic in topics}


def _tally_of(topic: str, lines: Iterable[Line]) -> Tally:
    ours = [line for line in lines if line.topic == topic]
    recurred = {line.redrive for line in ours if line.what is What.FAILED_AGAIN}
    handled = {line.redrive for line in ours if line.what is What.HANDLED}
    return Tally(
        poisons=sum(line.what is What.FAILED for line in ours),
        recurrences=len(recurred),
        confirmations=len(handled - recurred - {""}),
    )
