"""The sessions of Postgres in the test database: how many may be, and which waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

LIMIT = "ALTER DATABASE {name} CONNECTION LIMIT {most}"


@contextmanager
def sessions_left(number: int) -> Iterator[int]:
    """Leave this many sessions free in the test database; yield the limit."""
    with connection.cursor() as cursor:
        # Otherwise one transaction would always see the same sessions.
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        # Postgres hides the kind of other roles' sessions, as of autovacuum, from us.
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND (backend_type = 'client backend' OR backend_type IS NULL)"
        )
        (used,) = cursor.fetchone()
    with sessions_limited(used + number):
        yield used + number


@contextmanager
def sessions_limited(most: int) -> Iterator[None]:
    """Limit the sessions of the test database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT quote_ident(current_database())")
        (name,) = cursor.fetchone()
        cursor.execute(LIMIT.format(name=name, most=most))
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(LIMIT.format(name=name, most=-1))


def waits_for_a_lock(application: str = "") -> bool:
    """Check for a session, optionally of this name, that waits for another one."""
    with connection.cursor() as cursor:
        # Otherwise one transaction would always see the same rows.
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND datname = current_database() AND %s IN ('', application_name))",
            [application],
        )
        return bool(cursor.fetchone()[0])
