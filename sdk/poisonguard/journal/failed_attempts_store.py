"""The record of failed messages: a file that is touched only on failure.

All processes of one consumer on this host share the file. A message has a row here
from its first failure, or from the death of a process that was handling it, until it
is handled or poisoned for good. The healthy path checks only a set in memory,
`suspects`, which is empty while no message fails.

Failures are stored by the message's identity, deaths by its number: a dead process
leaves nothing but the number.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from poisonguard.contract import Cause
from poisonguard.journal.failed_attempts_record import (
    Record,
    moment,
    record_of,
    stamp,
    to_signed,
    to_unsigned,
)
from poisonguard.journal.failed_attempts_sqlite_file import AttemptsFile, Work
from poisonguard.journal.failed_attempts_sqlite_schema import (
    CRASH,
    DECAY,
    FAIL,
    SCHEMA,
    UNSETTLED,
    prune,
)
from poisonguard.journal.process_death_blame import Blame, Death

PRUNE_EVERY = 1_000

_Result = TypeVar("_Result")


class Attempts:
    """The record of failed messages in `file`, or in memory without one.

    Any thread may use it, and a forked child after its parent. Raise Full when the
    disk is full. `problems` mentions corrupt files that were replaced.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.suspects: set[int] = set()  # the numbers of all messages with a record
        self.given_up: set[int] = set()  # those of them that are poisoned already
        self.problems: list[str] = []
        # Not a method: dropping an `Attempts` must drop its file with it.
        lost = partial(_forget_lost_file, self.suspects, self.problems)
        self._file = AttemptsFile(file, SCHEMA, lost=lost)
        self._version: tuple[int, int] | None = None
        self._writes = 0

    def open(self, *, now: datetime) -> None:
        """Open the file of failed attempts, and load its suspected messages."""
        self._file.do(lambda db: prune(db, now))
        self.refresh()

    def of(self, identity: bytes, number: int, *, now: datetime) -> Record | None:
        """Return a message's record of failures and crashes; None without one.

        Old crashes do not count.
        """
        failure, crash = self._file.do(
            lambda db: _failure_and_crash(db, identity, number)
        )
        if crash is not None and moment(crash["at"]) < now - DECAY:
            crash = None
        rows = (failure, crash)
        return None if rows == (None, None) else record_of(*rows)

    def count_failure(
        self,
        identity: bytes,
        number: int,
        *,
        now: datetime,
        due_at: datetime | None = None,
        first_enqueued_at: datetime | None = None,
    ) -> Record:
        """Count a message's failure; return its record of failures and crashes.

        Deaths of processes that only made the message suspect no longer count.
        """
        row = {
            "identity": identity,
            "number": to_signed(number),
            "now": stamp(now),
            "due": due_at and stamp(due_at),
            "enqueued": first_enqueued_at and stamp(first_enqueued_at),
        }

        def write(db: sqlite3.Connection) -> Record:
            db.execute(FAIL, row)
            db.execute("UPDATE crashes SET suspected = 0 WHERE number = :number", row)
            db.execute(
                "DELETE FROM crashes WHERE number = :number AND crashes = 0", row
            )

            return record_of(*_failure_and_crash(db, identity, number))

        with self._file.lock:
            record = self._write(write, now)
            self.suspects.add(number)
        return record

    def count_crash(
        self, number: int, *, now: datetime, reason: str, cause: Cause = Cause.CRASH
    ) -> None:
        """Count a message's crash that the process itself sees coming."""
        row = _crash_row(number, now=now, charged=True, cause=cause, reason=reason)
        with self._file.lock:
            self._write(lambda db: db.execute(CRASH, row), now)
            self.suspects.add(number)

    def blame(self, death: Death) -> None:
        """Charge a process's death to its messages in flight, or suspect them.

        Each death counts once, and an excused one changes nothing.
        """
        if death.blame is Blame.EXCUSED:
            return
        rows = [
            _crash_row(
                number,
                now=death.at,
                charged=death.charged,
                cause=death.cause,
                reason=death.reason,
                stacks=death.stacks,
            )
            for number in death.numbers
        ]

        def write(db: sqlite3.Connection) -> None:
            row = (death.incarnation.bytes, stamp(death.at))
            if _insert(db, "INSERT OR IGNORE INTO deaths VALUES (?, ?)", row):
                db.executemany(CRASH, rows)

        with self._file.lock:
            self._write(write, death.at)
            self._version = None
            self.refresh()

    def forget(self, identity: bytes, number: int) -> None:
        """Delete the failed-attempt record of a message handled or reported."""
        with self._file.lock:
            self._file.do(lambda db: _delete_rows(db, identity, number))
            self.suspects.discard(number)
            self.given_up.discard(number)

    def mark_poison(
        self,
        identity: bytes,
        number: int,
        *,
        bookmark: str,
        now: datetime,
        lasts: timedelta = UNSETTLED,
    ) -> None:
        """Replace a message's record of failed attempts by a mark that it is poison.

        The mark is stored by bookmark: a message sent again has another bookmark.
        """
        statement = "INSERT OR REPLACE INTO poisoned VALUES (?, ?, ?)"
        row = (_encoded(bookmark), to_signed(number), stamp(now - UNSETTLED + lasts))

        def write(db: sqlite3.Connection) -> None:
            _delete_rows(db, identity, number)
            db.execute(statement, row)

        with self._file.lock:
            self._write(write, now)
            self.suspects.add(number)
            self.given_up.add(number)

    def is_poisoned(self, bookmark: str, *, now: datetime) -> bool:
        """Tell whether a poison is so recent that its broker may deliver it again."""
        question = "SELECT 1 FROM poisoned WHERE bookmark = ? AND at >= ?"
        row = (_encoded(bookmark), stamp(now - UNSETTLED))
        return self._has_row(question, row)

    def mark_first_failure(self, identity: bytes, *, now: datetime) -> bool:
        """Mark in the attempts file that a first failure was announced.

        Return False if it already was.
        """
        statement = "INSERT OR IGNORE INTO told VALUES (?, ?)"
        row = (identity, stamp(now))
        return self._write(lambda db: _insert(db, statement, row), now)

    def is_redrive_settled(self, message: str, n: str) -> bool:
        """Tell whether this redriven message was settled before."""
        question = "SELECT 1 FROM redrives WHERE message = ? AND n = ?"
        row = (message, n)
        return self._has_row(question, row)

    def mark_redrive_settled(self, message: str, n: str, *, now: datetime) -> None:
        """Remember that this redriven message is settled."""
        statement = "INSERT OR IGNORE INTO redrives VALUES (?, ?, ?)"
        row = (message, n, stamp(now))
        self._write(lambda db: db.execute(statement, row), now)

    def refresh(self) -> None:
        """Reload the numbers of suspected messages, if their file has changed.

        Other processes of this consumer write to that file.
        """
        with self._file.lock:
            changed = self._file.do(self._numbers_if_changed)
            if changed is not None:
                numbers, self.given_up = changed
                # In place, by atomic steps: the hot path reads it without a lock.
                self.suspects |= numbers
                self.suspects &= numbers

    def close(self) -> None:
        """Close the file of attempts; the next use opens it again."""
        self._file.close()

    def _has_row(self, question: str, row: tuple[object, ...]) -> bool:
        """Tell whether the attempts file has a row that this SELECT finds."""
        match = self._file.do(lambda db: db.execute(question, row).fetchone())
        return match is not None

    def _write(self, work: Work[_Result], now: datetime) -> _Result:
        """Run `work` in a transaction; prune the attempts every PRUNE_EVERY writes."""
        self._writes += 1
        if self._writes % PRUNE_EVERY == 0:
            self._file.do(lambda db: prune(db, now))
            self._version = None  # data_version ignores our own changes
        return self._file.do(work)

    def _numbers_if_changed(
        self, db: sqlite3.Connection
    ) -> tuple[set[int], set[int]] | None:
        """Read all suspect and given-up message numbers; None if unchanged."""
        # data_version is per connection: a new one starts from another value.
        counted = db.execute("PRAGMA data_version").fetchone()[0]
        version = (self._file.openings, counted)
        if version == self._version:
            return None
        self._version = version
        given_up = _numbers(db, "poisoned")
        return _numbers(db, "failures") | _numbers(db, "crashes") | given_up, given_up


def _forget_lost_file(suspects: set[int], problems: list[str], problem: str) -> None:
    """Forget all suspected messages of a corrupt attempts file; list that problem."""
    suspects.clear()
    problems.append(problem)


def _insert(db: sqlite3.Connection, statement: str, row: tuple[object, ...]) -> bool:
    """Run an INSERT OR IGNORE on the attempts; return whether it added the row."""
    return db.execute(statement, row).rowcount == 1


def _crash_row(
    number: int,
    *,
    now: datetime,
    charged: bool,
    cause: Cause,
    reason: str,
    stacks: str = "",
) -> dict[str, object]:
    """Return the SQL parameters that record a message's crash, or a suspected one."""
    return {
        "number": to_signed(number),
        "crashes": int(charged),
        "suspected": int(not charged),
        "now": stamp(now),
        "decayed": stamp(now - DECAY),
        "cause": cause.value,
        "reason": reason,
        "stacks": stacks,
    }


def _failure_and_crash(
    db: sqlite3.Connection, identity: bytes, number: int
) -> tuple[sqlite3.Row | None, sqlite3.Row | None]:
    """Read a message's failure row and crash row in the attempts; None if missing."""
    failure = db.execute("SELECT * FROM failures WHERE identity = ?", (identity,))
    crash = db.execute("SELECT * FROM crashes WHERE number = ?", (to_signed(number),))
    return failure.fetchone(), crash.fetchone()


def _numbers(db: sqlite3.Connection, table: str) -> set[int]:
    """Return the numbers of all messages with a row in a failed-attempt table."""
    rows = db.execute(f"SELECT number FROM {table}")  # noqa: S608 - our own names
    return {to_unsigned(row["number"]) for row in rows}


def _encoded(bookmark: str) -> bytes:
    """Encode a bookmark: SQLite text ends at a NUL and holds no lone surrogates."""
    return bookmark.encode("utf-8", "surrogatepass")


def _delete_rows(db: sqlite3.Connection, identity: bytes, number: int) -> None:
    """Delete all rows of a message's attempts."""
    db.execute("DELETE FROM failures WHERE identity = ?", (identity,))
    db.execute("DELETE FROM crashes WHERE number = ?", (to_signed(number),))
    db.execute("DELETE FROM poisoned WHERE number = ?", (to_signed(number),))
