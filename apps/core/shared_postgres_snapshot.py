"""Snapshots of the database that several sessions can share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from apps.core.postgres_connections import open_session


class Snapshot:
    """An open snapshot; other sessions can import it by `name` while it is open.

    `pg_snapshot` describes it for ever: with it, the transaction id of a row tells
    whether the row is in the snapshot.
    """

    name: str
    pg_snapshot: str

    def __init__(self, session: psycopg.Connection[Any]) -> None:
        self._session = session
        query = "SELECT pg_export_snapshot(), pg_current_snapshot()::text"
        ((self.name, self.pg_snapshot),) = session.execute(query).fetchall()

    def query(self, query: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Query Django's database as of this Postgres snapshot; return all rows."""
        return self._session.execute(query, values).fetchall()


@contextmanager
def open_snapshot() -> Iterator[Snapshot]:
    """Open a Postgres snapshot: a read-only transaction that blocks no other."""
    session = open_session("snapshot")
    try:
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        session.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        session.execute("SET LOCAL TimeZone = 'UTC'")
        yield Snapshot(session)
    finally:
        session.close()
