"""The SQLite file that the processes of one consumer share.

It is opened, repaired, and closed around forks here. Any thread may use it, and a
forked child after its parent.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

from poisonguard.errors import Full, GuardError, Misconfigured
from poisonguard.processes.linux_only_fcntl import fcntl

log = logging.getLogger(__name__)

BUSY_SECONDS = 30.0

_Result = TypeVar("_Result")
Work = Callable[[sqlite3.Connection], _Result]


class AttemptsFile:
    """A database with this schema, at `path`, or in memory without one.

    Raise Full when the disk is full. A corrupt file is renamed to `<file>.corrupt` and
    replaced by an empty one: `lost` is called with a sentence about it.
    """

    def __init__(
        self, path: Path | None, schema: str, *, lost: Callable[[str], None]
    ) -> None:
        self.lock = threading.RLock()
        self.openings = 0
        self._path = path
        self._schema = schema
        self._lost = lost
        self._db: sqlite3.Connection | None = None
        self._inode = 0
        _live.add(self)

    def close(self) -> None:
        """Close the attempts file's connection, if open; the next `do` opens it."""
        with self.lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def pause(self) -> None:
        """Close the attempts file until `resume`: no connection may cross a fork."""
        self.lock.acquire()
        if self._path is not None:
            self.close()

    def resume(self) -> None:
        """End the `pause` of the attempts file: other threads may open it again."""
        self.lock.release()

    def do(self, work: Work[_Result]) -> _Result:
        """Run `work` in a transaction of the attempts file; replace a corrupt file."""
        with self.lock:
            try:
                return self._transact(work)
            except sqlite3.DatabaseError as error:
                if self._path is None or not _is_corrupt(error):
                    raise self._guard_error(error) from error
                self._set_corrupt_file_aside(self._path, error)
            try:
                return self._transact(work)
            except sqlite3.DatabaseError as error:
                raise self._guard_error(error) from error

    def _transact(self, work: Work[_Result]) -> _Result:
        """Run `work` in one transaction of the attempts file; return its result."""
        if self._db is None:
            self._db = self._connect()
        self._db.execute("BEGIN IMMEDIATE")
        # Ends with COMMIT, or with ROLLBACK when `work` raises.
        with self._db as db:
            return work(db)

    def _connect(self) -> sqlite3.Connection:
        """Open the attempts database; remember the inode of its file."""
        self.openings += 1
        if self._path is None:
            return _open_database(":memory:", self._schema)
        with _exclusive(self._path):
            # Noted before it is read, as it may turn out to be corrupt.
            self._inode = _inode(self._path)
            db = _open_database(str(self._path), self._schema)
            self._inode = _inode(self._path)
            return db

    def _set_corrupt_file_aside(self, file: Path, error: sqlite3.DatabaseError) -> None:
        """Rename the corrupt file, unless another process has, and report its loss."""
        self.close()
        with _exclusive(file):
            # Another process may have replaced it already: then the file is good.
            if _inode(file) != self._inode:
                return
            aside = file.with_name(f"{file.name}.corrupt")
            file.replace(aside)
            for end in ("-wal", "-shm"):
                file.with_name(file.name + end).unlink(missing_ok=True)
        problem = (
            f"{file} was corrupt ({error}): it is now {aside.name}, and a new file was "
            "started; failures counted so far start from 0; look for a failing disk"
        )
        self._lost(problem)
        log.error(problem)

    def _guard_error(self, error: sqlite3.DatabaseError) -> GuardError:
        """Return the GuardError to raise for a database error, with its remedy."""
        code = _error_code(error)
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            return Full(f"{self._path} cannot grow ({error}): make room on its disk.")
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            return Misconfigured(
                f"{self._path} cannot be written ({error}): make it and its folder "
                "this user's own, or give the journal another folder."
            )
        return GuardError(f"{self._path}: {error}")


def _open_database(file: str, schema: str) -> sqlite3.Connection:
    """Open an SQLite database, check that it is whole, and create its tables."""
    db = sqlite3.connect(
        file, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA journal_mode = WAL")
        _check_database(db)
        db.executescript(schema)
    except BaseException:
        db.close()
        raise
    return db


def _check_database(db: sqlite3.Connection) -> None:
    """Raise Corrupt unless SQLite finds the database whole."""
    verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise Corrupt(verdict)


class Corrupt(sqlite3.DatabaseError):
    """The content of the file is damaged."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def _error_code(error: sqlite3.DatabaseError) -> int:
    """Return SQLite's primary error code, 0 for an error without one."""
    # The low byte is the kind, the rest of it the detail.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _is_corrupt(error: sqlite3.DatabaseError) -> bool:
    """Tell whether an SQLite error says that a file is damaged, or no database."""
    return _error_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _inode(file: Path) -> int:
    """Return the inode of a file, 0 where there is no file."""
    # By path: opening and closing the file would drop SQLite's locks on it.
    return file.stat().st_ino if file.exists() else 0


@contextmanager
def _exclusive(file: Path) -> Iterator[None]:
    """Keep other threads and processes from opening or replacing an attempts file."""
    with _opening, file.with_suffix(".lock").open("a") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        yield


# A connection must not cross a fork: it is closed before the fork, and both sides open
# it at the next use. Locks keep other threads out meanwhile.
_live: WeakSet[AttemptsFile] = WeakSet()
_opening = threading.Lock()
_paused: list[AttemptsFile] = []


def _before_fork() -> None:
    """Close all attempts files and take their locks, until the fork is done."""
    for file in list(_live):
        file.pause()
        _paused.append(file)
    _opening.acquire()


def _after_fork() -> None:
    """Release the locks that `_before_fork` took, in the parent and in the child."""
    _opening.release()
    while _paused:
        _paused.pop().resume()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
)
