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
from poisonguard.journal.attempts_file import AttemptsFile, Work
from poisonguard.journal.attempts_schema import (
    CRASH,
    DECAY,
    FAIL,
    SCHEMA,
    UNSETTLED,
    prune,
)
from poisonguard.journal.death import Blame, Death
from poisonguard.journal.record import (
    Record,
    moment,
    record_of,
    signed,
    stamp,
    unsigned,
)

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
        lost = partial(_begin_anew, self.suspects, self.problems)
        self._file = AttemptsFile(file, SCHEMA, lost=lost)
        self._version: tuple[int, int] | None = None
        self._writes = 0

    def open(self, *, now: datetime) -> None:
        """Open the file and load its suspects."""
        self._file.do(lambda db: prune(db, now))
        self.refresh()

    def of(self, identity: bytes, number: int, *, now: datetime) -> Record | None:
        """Return the record of a message, None when it has none."""
        failure, crash = self._file.do(
            lambda db: _failure_and_crash(db, identity, number)
        )
        if crash is not None and moment(crash["at"]) < now - DECAY:
            crash = None
        rows = (failure, crash)
        return None if rows == (None, None) else record_of(*rows)

    def failed(
        self,
        identity: bytes,
        number: int,
        *,
        now: datetime,
        due_at: datetime | None = None,
        first_enqueued_at: datetime | None = None,
    ) -> Record:
        """Count a failure; a message that fails by an exception is not suspected."""
        row = {
            "identity": identity,
            "number": signed(number),
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

    def crashed(
        self, number: int, *, now: datetime, reason: str, cause: Cause = Cause.CRASH
    ) -> None:
        """Count a crash that the process itself sees coming."""
        row = _crash(number, now=now, charged=True, cause=cause, reason=reason)
        with self._file.lock:
            self._write(lambda db: db.execute(CRASH, row), now)
            self.suspects.add(number)

    def blame(self, death: Death) -> None:
        """Count a death against its messages, or suspect them; once per death."""
        if death.blame is Blame.EXCUSED:
            return
        rows = [
            _crash(
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
            if _inserted(db, "INSERT OR IGNORE INTO deaths VALUES (?, ?)", row):
                db.executemany(CRASH, rows)

        with self._file.lock:
            self._write(write, death.at)
            self._version = None
            self.refresh()

    def forget(self, identity: bytes, number: int) -> None:
        """Delete the record of a message that was handled or is reported."""
        with self._file.lock:
            self._file.do(lambda db: _delete(db, identity, number))
            self.suspects.discard(number)
            self.given_up.discard(number)

    def poisoned(
        self,
        identity: bytes,
        number: int,
        *,
        bookmark: str,
        now: datetime,
        lasts: timedelta = UNSETTLED,
    ) -> None:
        """Replace the record of a message by a mark that it is poison.

        The mark is stored by bookmark: a message sent again has another bookmark.
        """
        statement = "INSERT OR REPLACE INTO poisoned VALUES (?, ?, ?)"
        row = (_raw(bookmark), signed(number), stamp(now - UNSETTLED + lasts))

        def write(db: sqlite3.Connection) -> None:
            _delete(db, identity, number)
            db.execute(statement, row)

        with self._file.lock:
            self._write(write, now)
            self.suspects.add(number)
            self.given_up.add(number)

    def is_poisoned(self, bookmark: str, *, now: datetime) -> bool:
        """Tell whether it was poisoned so recently that it may not be settled yet."""
        question = "SELECT 1 FROM poisoned WHERE bookmark = ? AND at >= ?"
        row = (_raw(bookmark), stamp(now - UNSETTLED))
        return self._knows(question, row)

    def mark_first_failure(self, identity: bytes, *, now: datetime) -> bool:
        """Mark its first failure as announced; return whether it was not yet."""
        statement = "INSERT OR IGNORE INTO told VALUES (?, ?)"
        row = (identity, stamp(now))
        return self._write(lambda db: _inserted(db, statement, row), now)

    def is_redrive_settled(self, message: str, n: str) -> bool:
        """Tell whether this redriven message was settled before."""
        question = "SELECT 1 FROM redrives WHERE message = ? AND n = ?"
        row = (message, n)
        return self._knows(question, row)

    def mark_redrive_settled(self, message: str, n: str, *, now: datetime) -> None:
        """Remember that this redriven message is settled."""
        statement = "INSERT OR IGNORE INTO redrives VALUES (?, ?, ?)"
        row = (message, n, stamp(now))
        self._write(lambda db: db.execute(statement, row), now)

    def refresh(self) -> None:
        """Update `suspects` with what other processes of this consumer recorded."""
        with self._file.lock:
            changed = self._file.do(self._changed_numbers)
            if changed is not None:
                numbers, self.given_up = changed
                # In place, by atomic steps: the hot path reads it without a lock.
                self.suspects |= numbers
                self.suspects &= numbers

    def close(self) -> None:
        self._file.close()

    def _knows(self, question: str, row: tuple[object, ...]) -> bool:
        match = self._file.do(lambda db: db.execute(question, row).fetchone())
        return match is not None

    def _write(self, work: Work[_Result], now: datetime) -> _Result:
        self._writes += 1
        if self._writes % PRUNE_EVERY == 0:
            self._file.do(lambda db: prune(db, now))
            self._version = None  # data_version ignores our own changes
        return self._file.do(work)

    def _changed_numbers(
        self, db: sqlite3.Connection
    ) -> tuple[set[int], set[int]] | None:
        # data_version is per connection: a new one starts from another value.
        counted = db.execute("PRAGMA data_version").fetchone()[0]
        version = (self._file.openings, counted)
        if version == self._version:
            return None
        self._version = version
        given_up = _numbers(db, "poisoned")
        return _numbers(db, "failures") | _numbers(db, "crashes") | given_up, given_up


def _begin_anew(suspects: set[int], problems: list[str], problem: str) -> None:
    suspects.clear()
    problems.append(problem)


def _inserted(db: sqlite3.Connection, statement: str, row: tuple[object, ...]) -> bool:
    return db.execute(statement, row).rowcount == 1


def _crash(
    number: int,
    *,
    now: datetime,
    charged: bool,
    cause: Cause,
    reason: str,
    stacks: str = "",
) -> dict[str, object]:
    return {
        "number": signed(number),
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
    failure = db.execute("SELECT * FROM failures WHERE identity = ?", (identity,))
    crash = db.execute("SELECT * FROM crashes WHERE number = ?", (signed(number),))
    return failure.fetchone(), crash.fetchone()


def _numbers(db: sqlite3.Connection, table: str) -> set[int]:
    rows = db.execute(f"SELECT number FROM {table}")  # noqa: S608 - our own names
    return {unsigned(row["number"]) for row in rows}


def _raw(bookmark: str) -> bytes:
    """Encode it: SQLite text ends at a NUL and holds no lone surrogates."""
    return bookmark.encode("utf-8", "surrogatepass")


def _delete(db: sqlite3.Connection, identity: bytes, number: int) -> None:
    db.execute("DELETE FROM failures WHERE identity = ?", (identity,))
    db.execute("DELETE FROM crashes WHERE number = ?", (signed(number),))
    db.execute("DELETE FROM poisoned WHERE number = ?", (signed(number),))
