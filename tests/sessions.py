"""A Postgres that has few sessions left: for this database only, others go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

LIMIT = "ALTER DATABASE {name} CONNECTION LIMIT {most}"


@contextmanager
def sessions_left(number: int) -> Iterator[int]:
    """Leave so many sessions of the database of this test; give how many there are."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND backend_type = 'client backend'"
        )
        (used,) = cursor.fetchone()
    with sessions_limited(used + number):
        yield used + number


@contextmanager
def sessions_limited(most: int) -> Iterator[None]:
    """Begin no session of the database of this test beyond so many."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT quote_ident(current_database())")
        (name,) = cursor.fetchone()
        cursor.execute(LIMIT.format(name=name, most=most))
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(LIMIT.format(name=name, most=-1))
