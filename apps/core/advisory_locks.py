"""Locks across processes: session advisory locks, on a session beside Django's.

A lock lasts as long as its session. A killed process loses both at once, without a
timeout. Still, an epoch must fence what the holder writes: a session can end while
its owner continues.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import psycopg
from django.db import connection

from apps.core.postgres_connections import open_session

log = logging.getLogger(__name__)

Session = psycopg.Connection[Any]


def key_of(name: str) -> int:
    """Map a Poisonweb lock's name to the signed 64-bit number of a Postgres lock."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


class Lock:
    """An acquired lock; `lost` says whether its session has ended."""

    def __init__(self, locks: Locks, session: Session) -> None:
        self._locks = locks
        self._session = session

    def lost(self) -> bool:
        """Tell whether Poisonweb's Postgres session ended, and this lock with it."""
        return self._locks.have_lost(self._session)


class Locks:
    """All locks of a process on one session, for any number of its threads.

    The first lock opens the session, and so does the first after it ended. Locks of a
    session that ended are lost, and say so at once. No thread waits for a lock here, so
    a thread blocks the others only for one query.

    `trust` is how many seconds the session counts as alive after an answer of Postgres.
    """

    def __init__(
        self,
        purpose: str = "lock",
        *,
        trust: float = 0.0,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._purpose = purpose
        self._trust = trust
        self._timer = timer
        self._mutex = threading.Lock()
        self._session: Session | None = None
        self._answered_at = 0.0
        # Postgres grants a session the same lock twice, so remember the taken ones.
        self._names: set[str] = set()

    @contextmanager
    def attempt(self, name: str) -> Iterator[Lock | None]:
        """Acquire an advisory lock if it is free; else yield None at once.

        Raises psycopg's OperationalError if Postgres does not answer.
        """
        session = self._acquire(name)
        try:
            yield Lock(self, session) if session else None
        finally:
            if session:
                self._release(name, session)

    def have_lost(self, session: Session) -> bool:
        """Tell whether a database session has ended, and all locks on it with it."""
        with self._mutex:
            if session is not self._session:
                return True
            if self._timer() - self._answered_at < self._trust:
                return False
            try:
                self._query(session, "SELECT true")
            except psycopg.OperationalError:
                return True
            return False

    def close(self) -> None:
        """Release all advisory locks of a Poisonweb process; close their session."""
        with self._mutex:
            if self._session is None:
                return
            with suppress(psycopg.OperationalError):
                self._query(self._session, "SELECT true FROM pg_advisory_unlock_all()")
            self._close_session()

    def _acquire(self, name: str) -> Session | None:
        """Acquire an advisory lock; return its session, or None if it is not free."""
        with self._mutex:
            if name in self._names:
                return None
            if self._session is None:
                self._session = open_session(self._purpose)
            session = self._session
            if not self._query(
                session, "SELECT pg_try_advisory_lock(%s)", key_of(name)
            ):
                return None
            self._names.add(name)
            return session

    def _release(self, name: str, session: Session) -> None:
        """Release this advisory lock, unless its session has ended."""
        with self._mutex, suppress(psycopg.OperationalError):
            if session is self._session:
                self._names.discard(name)
                self._query(session, "SELECT pg_advisory_unlock(%s)", key_of(name))

    def _query(self, session: Session, query: str, *values: int) -> bool:
        """Run a boolean query on the session that has our advisory locks.

        Close the session if Postgres does not answer: otherwise it could keep locks
        that no thread here relies on any more.
        """
        try:
            row = session.execute(query, values).fetchone()
        except psycopg.OperationalError as trouble:
            log.warning(
                "the session of %d locks is lost: %s", len(self._names), trouble
            )
            self._close_session()
            raise
        self._answered_at = self._timer()
        return bool(row and row[0])

    def _close_session(self) -> None:
        """Close the session of Poisonweb's advisory locks and forget these locks."""
        session, self._session = self._session, None
        self._names.clear()
        if session is not None:
            session.close()


@contextmanager
def attempt(name: str) -> Iterator[Lock | None]:
    """Acquire a Poisonweb lock on a session of its own; yield None if not free."""
    with closing(Locks()) as locks, locks.attempt(name) as lock:
        yield lock


def wait_for(name: str) -> None:
    """Wait for an advisory lock; the transaction's end releases it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [key_of(name)])


def names_locked(names: Iterable[str]) -> set[str]:
    """Return the names of those advisory locks that any session holds now."""
    keys = {key_of(name): name for name in names}
    if not keys:
        return set()
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks
            WHERE locktype = 'advisory' AND objsubid = 1 AND granted
              AND database = (SELECT oid FROM pg_database
                              WHERE datname = current_database())
            """
        )
        return {keys[key] for (key,) in cursor.fetchall() if key in keys}
