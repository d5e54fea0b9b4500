"""Exclusive work across processes: session advisory locks, beside Django's connection.

A lock lives as long as its session. A process that is killed drops both, so nobody
waits for a timer to find out. What the holder writes must be fenced by an epoch all
the same: a session can die while its owner goes on.
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

from apps.core.sessions import open_session

log = logging.getLogger(__name__)

Session = psycopg.Connection[Any]


def key_of(name: str) -> int:
    """Map a name to the signed 64-bit number that Postgres locks by."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


class Lock:
    """A lock that is held; `lost` says whether the session behind it has ended."""

    def __init__(self, locks: Locks, session: Session) -> None:
        self._locks = locks
        self._session = session

    def lost(self) -> bool:
        return self._locks.have_lost(self._session)


class Locks:
    """All locks of a process on one session, for any number of its threads.

    The session is opened for the first lock, and again after it ended; all locks that
    were taken on it are lost then, and say so at once. Nobody waits here for a lock,
    so one thread keeps the others no longer than a question to Postgres takes.

    `trust` is for how many seconds an answer of Postgres tells that the session lives.
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
        self._turn = threading.Lock()
        self._session: Session | None = None
        self._answered_at = 0.0
        # Postgres gives one session the same lock twice: who has it is known here.
        self._names: set[str] = set()

    @contextmanager
    def attempt(self, name: str) -> Iterator[Lock | None]:
        """Take the lock if it is free; give None at once if it is not.

        Raises psycopg's OperationalError where Postgres does not answer.
        """
        session = self._take(name)
        try:
            yield Lock(self, session) if session else None
        finally:
            if session:
                self._let_go(name, session)

    def have_lost(self, session: Session) -> bool:
        """Tell whether a session ended, with all that was locked on it."""
        with self._turn:
            if session is not self._session:
                return True
            if self._timer() - self._answered_at < self._trust:
                return False
            try:
                self._ask(session, "SELECT true")
            except psycopg.OperationalError:
                return True
            return False

    def close(self) -> None:
        """Have all locks free at once: Postgres notices a closed session a while later.

        One that is lost holds nothing any more.
        """
        with self._turn:
            if self._session is None:
                return
            with suppress(psycopg.OperationalError):
                self._ask(self._session, "SELECT true FROM pg_advisory_unlock_all()")
            self._end()

    def _take(self, name: str) -> Session | None:
        with self._turn:
            if name in self._names:
                return None
            if self._session is None:
                self._session = open_session(self._purpose)
            session = self._session
            if not self._ask(session, "SELECT pg_try_advisory_lock(%s)", key_of(name)):
                return None
            self._names.add(name)
            return session

    def _let_go(self, name: str, session: Session) -> None:
        """Have this lock free and the others held; one that was lost is nobody's."""
        with self._turn, suppress(psycopg.OperationalError):
            if session is self._session:
                self._names.discard(name)
                self._ask(session, "SELECT pg_advisory_unlock(%s)", key_of(name))

    def _ask(self, session: Session, query: str, *values: int) -> bool:
        """Ask Postgres for a yes or no; a session that gives none is ended.

        So it cannot hold what nobody here relies on any more.
        """
        try:
            row = session.execute(query, values).fetchone()
        except psycopg.OperationalError as trouble:
            log.warning(
                "the session of %d locks is lost: %s", len(self._names), trouble
            )
            self._end()
            raise
        self._answered_at = self._timer()
        return bool(row and row[0])

    def _end(self) -> None:
        session, self._session = self._session, None
        self._names.clear()
        if session is not None:
            session.close()


@contextmanager
def attempt(name: str) -> Iterator[Lock | None]:
    """Take a lock on a session of its own if it is free; give None if it is not."""
    with closing(Locks()) as locks, locks.attempt(name) as held:
        yield held


def wait_for(name: str) -> None:
    """Wait for a lock of the current transaction, which lets go of it at its end."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [key_of(name)])


def held(names: Iterable[str]) -> set[str]:
    """Tell which of these locks somebody holds now, without taking any."""
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
