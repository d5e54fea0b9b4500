"""What is known of messages that failed: kept in a file, touched only on failure.

All processes of one consumer on this host share the file. A message has a row here
from its first failure, or from the death of a process that was working on it, until
it is forgotten: handled, or poisoned for good. The healthy path asks one set in
memory, `suspects`, which is empty in health.

Failures are kept by the message's identity, deaths by its number: a dead process left
nothing but the number.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

from poisonguard.contract import Cause
from poisonguard.death import Blame, Death
from poisonguard.errors import Full, GuardError, Misconfigured

log = logging.getLogger(__name__)

# A crash this long ago says nothing about the next one.
DECAY = timedelta(hours=72)
KEEP = timedelta(days=30)
# Killed after a message was poisoned and before it was settled, a consumer is handed it
# again within such a time; later it is somebody who sends it again.
UNSETTLED = timedelta(minutes=15)
ROW_LIMIT = 100_000
PRUNE_EVERY = 1_000
BUSY_SECONDS = 30.0
SECOND = timedelta(seconds=1)

SCHEMA = """
CREATE TABLE IF NOT EXISTS failures (
    identity BLOB PRIMARY KEY, number INTEGER NOT NULL, failures INTEGER NOT NULL,
    first_at INTEGER NOT NULL, at INTEGER NOT NULL, due_at INTEGER,
    first_enqueued_at INTEGER
);
CREATE TABLE IF NOT EXISTS crashes (
    number INTEGER PRIMARY KEY, crashes INTEGER NOT NULL, suspected INTEGER NOT NULL,
    first_at INTEGER NOT NULL, at INTEGER NOT NULL, cause TEXT NOT NULL,
    reason TEXT NOT NULL, stacks TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS poisoned (
    bookmark BLOB PRIMARY KEY, number INTEGER NOT NULL, at INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS deaths (incarnation BLOB PRIMARY KEY, at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS told (identity BLOB PRIMARY KEY, at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS redrives (
    message TEXT, n TEXT, at INTEGER NOT NULL, PRIMARY KEY (message, n)
);
"""
KEPT = {
    "failures": KEEP,
    "crashes": DECAY,
    "poisoned": UNSETTLED,
    "deaths": KEEP,
    "told": KEEP,
    "redrives": KEEP,
}

FAIL = """
INSERT INTO failures VALUES (:identity, :number, 1, :now, :now, :due, :enqueued)
ON CONFLICT (identity) DO UPDATE SET
    number = excluded.number, failures = failures + 1, at = excluded.at,
    due_at = excluded.due_at,
    first_enqueued_at = coalesce(first_enqueued_at, excluded.first_enqueued_at)
"""
# An older count that has decayed starts again from nothing.
CRASH = """
INSERT INTO crashes
VALUES (:number, :crashes, :suspected, :now, :now, :cause, :reason, :stacks)
ON CONFLICT (number) DO UPDATE SET
    crashes = excluded.crashes + CASE WHEN at < :decayed THEN 0 ELSE crashes END,
    suspected = excluded.suspected, at = excluded.at, cause = excluded.cause,
    reason = excluded.reason, stacks = excluded.stacks
"""
PRUNE = (
    "UPDATE {table} SET at = :now WHERE at > :now",
    "DELETE FROM {table} WHERE at < :oldest",
    "DELETE FROM {table} WHERE rowid IN "
    "(SELECT rowid FROM {table} ORDER BY at DESC LIMIT -1 OFFSET :rows)",
)

_Result = TypeVar("_Result")
_Work = Callable[[sqlite3.Connection], _Result]


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What is known of one message.

    `crash` is the cause of its last death, with the reason and the stacks of that.
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
        """Return how many of its deliveries are held against it."""
        return self.failures + self.crashes

    @property
    def must_run_alone(self) -> bool:
        """Tell whether nothing else may be in flight, for its death to be exact."""
        return self.is_suspected or self.crashes > 0

    def wait(self, now: datetime) -> timedelta:
        """Return how long it is not due yet.

        That is never longer than when it failed: a clock set back must not hold it.
        """
        if self.due_at is None:
            return timedelta(0)
        whole = max(self.due_at - self.failed_at, timedelta(0))
        return min(max(self.due_at - now, timedelta(0)), whole)


class Attempts:
    """The record of failed messages in `file`, or in memory without one.

    Any thread may use it, and a forked child after its parent. Raises Full when the
    disk is; a corrupt file is put aside as `<file>.corrupt` and started anew.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.suspects: set[int] = set()  # the numbers of all messages with a record
        self.given_up: set[int] = set()  # those among them that are poisoned already
        self.problems: list[str] = []
        self._file = file
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._inode = 0
        self._version = -1
        self._writes = 0
        _live.add(self)

    def open(self, *, now: datetime) -> None:
        """Make the file usable and know its suspects."""
        self._do(lambda db: _prune(db, now))
        self.refresh()

    def of(self, identity: bytes, number: int, *, now: datetime) -> Record | None:
        """Return what is known of a message, None when nothing speaks against it."""
        failure, crash = self._do(lambda db: _rows(db, identity, number))
        if crash is not None and _moment(crash["at"]) < now - DECAY:
            crash = None
        rows = (failure, crash)
        return None if rows == (None, None) else _record(*rows)

    def failed(
        self,
        identity: bytes,
        number: int,
        *,
        now: datetime,
        due_at: datetime | None = None,
        first_enqueued_at: datetime | None = None,
    ) -> Record:
        """Count a failure; whoever fails by an exception is no longer suspected."""
        row = {
            "identity": identity,
            "number": _signed(number),
            "now": _stamp(now),
            "due": due_at and _stamp(due_at),
            "enqueued": first_enqueued_at and _stamp(first_enqueued_at),
        }

        def write(db: sqlite3.Connection) -> Record:
            db.execute(FAIL, row)
            db.execute("UPDATE crashes SET suspected = 0 WHERE number = :number", row)
            db.execute(
                "DELETE FROM crashes WHERE number = :number AND crashes = 0", row
            )

            return _record(*_rows(db, identity, number))

        with self._lock:
            record = self._write(write, now)
            self.suspects.add(number)
        return record

    def crashed(
        self, number: int, *, now: datetime, reason: str, cause: Cause = Cause.CRASH
    ) -> None:
        """Charge a message with a death that its own process sees coming."""
        row = _crash(number, now=now, charged=True, cause=cause, reason=reason)
        with self._lock:
            self._write(lambda db: db.execute(CRASH, row), now)
            self.suspects.add(number)

    def blame(self, death: Death) -> None:
        """Charge or suspect the messages of a dead process, once for each death."""
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
            known = (death.incarnation.bytes, _stamp(death.at))
            if _inserted(db, "INSERT OR IGNORE INTO deaths VALUES (?, ?)", known):
                db.executemany(CRASH, rows)

        with self._lock:
            self._write(write, death.at)
            self._version = -1
            self.refresh()

    def forget(self, identity: bytes, number: int) -> None:
        """Drop the record of a message: it was handled, or others keep it by now."""
        with self._lock:
            self._do(lambda db: _delete(db, identity, number))
            self.suspects.discard(number)
            self.given_up.discard(number)

    def poisoned(
        self, identity: bytes, number: int, *, bookmark: str, now: datetime
    ) -> None:
        """Drop the record of a message but for the word that it is poison.

        That is kept by its bookmark: sent again, it has another.
        """
        statement = "INSERT OR REPLACE INTO poisoned VALUES (?, ?, ?)"
        row = (_raw(bookmark), _signed(number), _stamp(now))

        def write(db: sqlite3.Connection) -> None:
            _delete(db, identity, number)
            db.execute(statement, row)

        with self._lock:
            self._write(write, now)
            self.suspects.add(number)
            self.given_up.add(number)

    def is_poisoned(self, bookmark: str, *, now: datetime) -> bool:
        """Tell whether it was poisoned so lately that it may only lack its settling."""
        question = "SELECT 1 FROM poisoned WHERE bookmark = ? AND at >= ?"
        row = (_raw(bookmark), _stamp(now - UNSETTLED))
        return self._do(lambda db: db.execute(question, row).fetchone()) is not None

    def told_first(self, identity: bytes, *, now: datetime) -> bool:
        """Tell, once for each message, that its first failure is yet to be told."""
        statement = "INSERT OR IGNORE INTO told VALUES (?, ?)"
        row = (identity, _stamp(now))
        return self._write(lambda db: _inserted(db, statement, row), now)

    def redrive_seen(self, message: str, n: str) -> bool:
        """Tell whether this redriven message was settled before."""
        question = "SELECT 1 FROM redrives WHERE message = ? AND n = ?"
        row = (message, n)
        return self._do(lambda db: db.execute(question, row).fetchone()) is not None

    def redrive_done(self, message: str, n: str, *, now: datetime) -> None:
        """Remember that this redriven message is settled."""
        statement = "INSERT OR IGNORE INTO redrives VALUES (?, ?, ?)"
        row = (message, n, _stamp(now))
        self._write(lambda db: db.execute(statement, row), now)

    def refresh(self) -> None:
        """Let `suspects` know what other processes of this consumer have found."""
        with self._lock:
            changed = self._do(self._changed_numbers)
            if changed is not None:
                numbers, self.given_up = changed
                # In place, by single steps: the hot path looks at it without a lock.
                self.suspects |= numbers
                self.suspects &= numbers

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def pause(self) -> None:
        """Leave the file until `resume`: no connection may cross a fork."""
        self._lock.acquire()
        if self._file is not None:
            self.close()

    def resume(self) -> None:
        self._lock.release()

    def _write(self, work: _Work[_Result], now: datetime) -> _Result:
        self._writes += 1
        if self._writes % PRUNE_EVERY == 0:
            self._do(lambda db: _prune(db, now))
            self._version = -1  # of what we change ourselves the file tells nothing
        return self._do(work)

    def _do(self, work: _Work[_Result]) -> _Result:
        """Run `work` in a transaction, a second time where the file was corrupt."""
        with self._lock:
            try:
                return self._transact(work)
            except sqlite3.DatabaseError as error:
                if self._file is None or not _is_corrupt(error):
                    raise self._explained(error) from error
                self._start_anew(self._file, error)
            try:
                return self._transact(work)
            except sqlite3.DatabaseError as error:
                raise self._explained(error) from error

    def _transact(self, work: _Work[_Result]) -> _Result:
        if self._db is None:
            self._db = self._connect()
        self._db.execute("BEGIN IMMEDIATE")
        # Leaves by COMMIT or, with whatever work raises, by ROLLBACK.
        with self._db as db:
            return work(db)

    def _connect(self) -> sqlite3.Connection:
        self._version = -1
        if self._file is None:
            return _prepared(":memory:")
        with _alone(self._file):
            # Known before the first look: it may turn out to be corrupt.
            self._inode = _inode(self._file)
            db = _prepared(str(self._file))
            self._inode = _inode(self._file)
            return db

    def _start_anew(self, file: Path, error: sqlite3.DatabaseError) -> None:
        self.close()
        with _alone(file):
            # Unless another process was here first: then this one is good.
            if _inode(file) != self._inode:
                return
            aside = file.with_name(f"{file.name}.corrupt")
            file.replace(aside)
            for end in ("-wal", "-shm"):
                file.with_name(file.name + end).unlink(missing_ok=True)
        self.suspects.clear()
        problem = (
            f"{file} was corrupt ({error}): it is now {aside.name} and was started "
            "anew, failures counted so far start from 0; look for a failing disk"
        )
        self.problems.append(problem)
        log.error(problem)

    def _changed_numbers(
        self, db: sqlite3.Connection
    ) -> tuple[set[int], set[int]] | None:
        version = db.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version:
            return None
        self._version = version
        given_up = _numbers(db, "poisoned")
        return _numbers(db, "failures") | _numbers(db, "crashes") | given_up, given_up

    def _explained(self, error: sqlite3.DatabaseError) -> GuardError:
        code = _code(error)
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            return Full(f"{self._file} cannot grow ({error}): make room on its disk.")
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            return Misconfigured(
                f"{self._file} cannot be written ({error}): make it and its folder "
                "this user's own, or give the journal another folder."
            )
        return GuardError(f"{self._file}: {error}")


def _prepared(file: str) -> sqlite3.Connection:
    db = sqlite3.connect(
        file, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA journal_mode = WAL")
        _check(db)
        db.executescript(SCHEMA)
    except BaseException:
        db.close()
        raise
    return db


def _check(db: sqlite3.Connection) -> None:
    verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise Corrupt(verdict)


class Corrupt(sqlite3.DatabaseError):
    """The file is not what was written into it."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def _code(error: sqlite3.DatabaseError) -> int:
    # The low byte is the kind, the rest of it the detail.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _is_corrupt(error: sqlite3.DatabaseError) -> bool:
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _inode(file: Path) -> int:
    # By its path: to open and close it would end the locks that SQLite has on it.
    return file.stat().st_ino if file.exists() else 0


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Keep other threads and processes from opening `file`, or putting it aside."""
    with _opening, file.with_suffix(".lock").open("a") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        yield


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
        "number": _signed(number),
        "crashes": int(charged),
        "suspected": int(not charged),
        "now": _stamp(now),
        "decayed": _stamp(now - DECAY),
        "cause": cause.value,
        "reason": reason,
        "stacks": stacks,
    }


def _rows(
    db: sqlite3.Connection, identity: bytes, number: int
) -> tuple[sqlite3.Row | None, sqlite3.Row | None]:
    failure = db.execute("SELECT * FROM failures WHERE identity = ?", (identity,))
    crash = db.execute("SELECT * FROM crashes WHERE number = ?", (_signed(number),))
    return failure.fetchone(), crash.fetchone()


def _numbers(db: sqlite3.Connection, table: str) -> set[int]:
    rows = db.execute(f"SELECT number FROM {table}")  # noqa: S608 - our own names
    return {_unsigned(row["number"]) for row in rows}


def _raw(bookmark: str) -> bytes:
    """Make bytes of it: SQLite's text ends at a NUL, and holds no lone surrogates."""
    return bookmark.encode("utf-8", "surrogatepass")


def _delete(db: sqlite3.Connection, identity: bytes, number: int) -> None:
    db.execute("DELETE FROM failures WHERE identity = ?", (identity,))
    db.execute("DELETE FROM crashes WHERE number = ?", (_signed(number),))
    db.execute("DELETE FROM poisoned WHERE number = ?", (_signed(number),))


def _record(failure: sqlite3.Row | None, crash: sqlite3.Row | None) -> Record:
    rows = [row for row in (failure, crash) if row is not None]
    due_at = failure and failure["due_at"]
    enqueued_at = failure and failure["first_enqueued_at"]
    return Record(
        failures=failure["failures"] if failure else 0,
        crashes=crash["crashes"] if crash else 0,
        is_suspected=bool(crash and crash["suspected"]),
        first_failed_at=_moment(min(row["first_at"] for row in rows)),
        failed_at=_moment(max(row["at"] for row in rows)),
        due_at=_moment(due_at) if due_at else None,
        first_enqueued_at=_moment(enqueued_at) if enqueued_at else None,
        crash=Cause(crash["cause"]) if crash else None,
        reason=crash["reason"] if crash else "",
        stacks=crash["stacks"] if crash else "",
    )


def _prune(db: sqlite3.Connection, now: datetime) -> None:
    # What is from the future was written before the clock was set back.
    db.execute(
        "UPDATE failures SET due_at = due_at - at + :now WHERE at > :now",
        {"now": _stamp(now)},
    )
    for table, keep in KEPT.items():
        limits = {"now": _stamp(now), "oldest": _stamp(now - keep), "rows": ROW_LIMIT}
        for statement in PRUNE:
            db.execute(statement.format(table=table), limits)


def _stamp(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)


def _moment(stamp: int) -> datetime:
    return datetime.fromtimestamp(stamp / 1_000_000, UTC)


def _signed(number: int) -> int:
    """Return a number of 64 bits as SQLite holds it."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _unsigned(number: int) -> int:
    return number + (1 << 64) if number < 0 else number


# A connection must not cross a fork: closed before it, and opened again on both sides
# at the next use. Nobody else is inside of one meanwhile.
_live: WeakSet[Attempts] = WeakSet()
_opening = threading.Lock()
_paused: list[Attempts] = []


def _before_fork() -> None:
    for attempts in list(_live):
        attempts.pause()
        _paused.append(attempts)
    _opening.acquire()


def _after_fork() -> None:
    _opening.release()
    while _paused:
        _paused.pop().resume()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
)
