"""One moment of the database, to be seen by several sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from apps.core.sessions import open_session


class Snapshot:
    """A moment that is held; `name` lets other sessions see it, while it is.

    `seen` is what Postgres knows it by for ever (pg_snapshot): with it, a row's
    transaction id tells whether that moment saw the row.
    """

    name: str
    seen: str

    def __init__(self, session: psycopg.Connection[Any]) -> None:
        self._session = session
        query = "SELECT pg_export_snapshot(), pg_current_snapshot()::text"
        ((self.name, self.seen),) = session.execute(query).fetchall()

    def ask(self, query: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Ask what the database held at that moment."""
        return self._session.execute(query, values).fetchall()


@contextmanager
def held() -> Iterator[Snapshot]:
    """Hold this moment open: a read-only transaction that nothing waits for."""
    session = open_session("snapshot")
    try:
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        session.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        session.execute("SET LOCAL TimeZone = 'UTC'")
        yield Snapshot(session)
    finally:
        session.close()
