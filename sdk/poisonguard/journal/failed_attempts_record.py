"""The record of one message, and how its rows are stored."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from poisonguard.contract import Cause


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """The record of one message.

    `crash` is the cause of the last death of its process, with `reason` and `stacks`.
    """

    failures: int = 0
    crashes: int = 0
    is_suspected: bool = False
    first_failed_at: datetime
    failed_at: datetime
    due_at: datetime | None = None
    first_enqueued_at: datetime | None = None
    crash: Cause | None = None
    reason: str = ""
    stacks: str = ""

    @property
    def attempts(self) -> int:
        """Return how many deliveries of a message count against its limit."""
        return self.failures + self.crashes

    @property
    def must_run_alone(self) -> bool:
        """Tell if a message must run alone, so that a death is blamed exactly."""
        return self.is_suspected or self.crashes > 0

    def wait(self, now: datetime) -> timedelta:
        """Return the time until a message's retry is due.

        It is never longer than the original delay, should the clock be set back.
        """
        if self.due_at is None:
            return timedelta(0)
        whole = max(self.due_at - self.failed_at, timedelta(0))
        return min(max(self.due_at - now, timedelta(0)), whole)


def record_of(failure: sqlite3.Row | None, crash: sqlite3.Row | None) -> Record:
    """Build a message's record from a row of failures, of crashes, or both."""
    rows = [row for row in (failure, crash) if row is not None]
    due_at = failure and failure["due_at"]
    enqueued_at = failure and failure["first_enqueued_at"]
    return Record(
        failures=failure["failures"] if failure else 0,
        crashes=crash["crashes"] if crash else 0,
        is_suspected=bool(crash and crash["suspected"]),
        first_failed_at=moment(min(row["first_at"] for row in rows)),
        failed_at=moment(max(row["at"] for row in rows)),
        due_at=moment(due_at) if due_at else None,
        first_enqueued_at=moment(enqueued_at) if enqueued_at else None,
        crash=Cause(crash["cause"]) if crash else None,
        reason=crash["reason"] if crash else "",
        stacks=crash["stacks"] if crash else "",
    )


def stamp(moment: datetime) -> int:
    """Convert a time to microseconds since 1970, as the attempts' tables hold it."""
    return int(moment.timestamp() * 1_000_000)


def moment(stamp: int) -> datetime:
    """Convert microseconds since 1970 to a time."""
    return datetime.fromtimestamp(stamp / 1_000_000, UTC)


def to_signed(number: int) -> int:
    """Convert an unsigned 64-bit number to the signed one that SQLite stores."""
    return number - (1 << 64) if number >= 1 << 63 else number


def to_unsigned(number: int) -> int:
    """Convert a signed number of SQLite back to the unsigned 64-bit number."""
    return number + (1 << 64) if number < 0 else number
