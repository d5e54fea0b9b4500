"""Exclusive work across processes: a session advisory lock on a connection of its own.

The lock lives as long as its connection. A process that is killed drops both, so
nobody waits for a timer to find out. What the holder writes must be fenced by an epoch
all the same: a connection can die while its owner goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import psycopg
from django.db import connection

from apps.core.sessions import open_session


def key_of(name: str) -> int:
    """Map a name to the signed 64-bit number that Postgres locks by."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


class Lock:
    """A lock that is held; `lost` says whether the connection behind it still is."""

    def __init__(self, session: psycopg.Connection[Any]) -> None:
        self._session = session

    def lost(self) -> bool:
        try:
            self._session.execute("SELECT 1")
        except psycopg.OperationalError:
            return True
        return False


@contextmanager
def attempt(name: str) -> Iterator[Lock | None]:
    """Take the lock if it is free; give None at once if it is not."""
    session = open_session("lock")
    try:
        query = "SELECT pg_try_advisory_lock(%s)"
        row = session.execute(query, [key_of(name)]).fetchone()
        yield Lock(session) if row and row[0] else None
    finally:
        _let_go(session)


def _let_go(session: psycopg.Connection[Any]) -> None:
    """Have the lock free at once: Postgres notices a closed connection a while later.

    One that is lost holds nothing any more.
    """
    with closing(session), suppress(psycopg.OperationalError):
        session.execute("SELECT pg_advisory_unlock_all()")


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
