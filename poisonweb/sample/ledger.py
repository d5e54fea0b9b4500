"""What happened, as the consumers themselves saw it: one JSON line each.

A line about a message is written and flushed before the message is settled. A process
killed between the two handles that message again and writes another line about it, so
the last line about a message is the one that holds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Self

LONGEST_LINE = 4_096


class What(StrEnum):
    """Handled: noted for redriven messages, and for those that were begun before."""

    PRODUCED = "produced"
    FAILED = "failed"
    FAILED_AGAIN = "failed again"
    HANDLED = "handled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One thing that happened; `redrive` is the header of a redriven message."""

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
        with path.open("ab+") as file:
            _cut_half_a_line(file)

    def write(
        self,
        what: What,
        *,
        topic: str,
        bookmark: str,
        redrive: str = "",
        error: str = "",
    ) -> None:
        """Add a line; it outlives this process when this returns."""
        line = Line(
            at=datetime.now(UTC),
            what=what,
            topic=topic,
            bookmark=bookmark,
            redrive=redrive,
            error=error,
        )
        # Opened to append, and written in one go: lines of two threads do not mix.
        with self.path.open("ab") as file:
            file.write(line.to_json())

    def began(self) -> datetime | None:
        """Return the time of the first line."""
        first = next(read(self.path), None)
        return None if first is None else first.at


def _cut_half_a_line(file: BinaryIO) -> None:
    """Cut off what a full disk left of a line, for nothing was done on its word."""
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
