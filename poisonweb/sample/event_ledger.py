"""What producer and consumers did, one JSON line per event.

A line about a message is written before the guard or the server learns of the result. A
process that is killed in between handles the message again and writes another line, so
the last line about a message is valid: except that a new release may handle what the
server learned of in the moment before the kill. Several processes write to one ledger.
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


class LedgerNotWritten(BaseException):
    """The ledger cannot be written: this is no failure of the current message."""


class What(StrEnum):
    """Kinds of events; HANDLED only for redriven messages and repeated attempts."""

    PRODUCED = "produced"
    FAILED = "failed"
    FAILED_AGAIN = "failed again"
    HANDLED = "handled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One event; `redrive` is the header of a redriven message.

    `error` is empty if a message failed in another process.
    """

    at: datetime
    what: What
    topic: str
    bookmark: str
    redrive: str = ""
    error: str = ""

    @classmethod
    def parse(cls, text: bytes) -> Self:
        members = json.loads(text)
        at, what = datetime.fromisoformat(members.pop("at")), What(members.pop("what"))
        return cls(at=at, what=what, **members)

    def to_json(self) -> bytes:
        """Write a line of the sample's event ledger as JSON, without empty members."""
        members = {**asdict(self), "at": self.at.isoformat()}
        present = {name: value for name, value in members.items() if value}
        return json.dumps(present).encode() + b"\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """The numbers that the server must show for one topic when all is settled."""

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
        """Add a line to the sample's ledger, to survive a kill.

        Raises LedgerNotWritten.
        """
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
            raise LedgerNotWritten(str(trouble)) from trouble

    def _append(self, text: bytes) -> None:
        """Append a line to the sample's ledger, under a lock between its programs."""
        with self.path.open("ab+") as file:
            # Another process must not cut off the line that is being written.
            fcntl.flock(file, fcntl.LOCK_EX)
            _cut_half_a_line(file)
            file.write(text)

    def began(self) -> datetime | None:
        """Return the time of the first line in the sample's ledger, or None."""
        first = next(read(self.path), None)
        return None if first is None else first.at


def _cut_half_a_line(file: BinaryIO) -> None:
    """Cut off the last, partial line of the sample's ledger.

    A kill or a full disk left it.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - LONGEST_LINE))
    end = file.read()
    file.truncate(size - len(end) + end.rfind(b"\n") + 1)


def read(path: Path) -> Iterator[Line]:
    """Yield the lines of the sample's ledger of events."""
    with path.open("rb") as file:
        yield from map(Line.parse, file)


def tally(lines: Iterable[Line]) -> dict[str, Tally]:
    """Count from the sample's ledger, by topic, what the server must show.

    Those are poisons, recurrences and confirmations. A redrive that was delivered twice
    counts once; if it failed once, as a recurrence.
    """
    last = {
        (line.topic, line.bookmark): line
        for line in lines
        if line.what is not What.PRODUCED
    }
    topics = sorted({topic for topic, _ in last})
    return {topic: _tally_of(topic, last.values()) for topic in topics}


def _tally_of(topic: str, lines: Iterable[Line]) -> Tally:
    """Count from the sample's ledger what the server must show for a topic."""
    ours = [line for line in lines if line.topic == topic]
    recurred = {line.redrive for line in ours if line.what is What.FAILED_AGAIN}
    handled = {line.redrive for line in ours if line.what is What.HANDLED}
    return Tally(
        poisons=sum(line.what is What.FAILED for line in ours),
        recurrences=len(recurred),
        confirmations=len(handled - recurred - {""}),
    )
