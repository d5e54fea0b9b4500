"""A disk of Postgres without room, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction

# What Postgres answers to a statement that cannot extend the file of a table.
_REFUSE = """
    CREATE FUNCTION pg_temp.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'could not extend file: No space left on device'
            USING ERRCODE = 'disk_full';
    END $$
"""


@contextmanager
def full_disk(*tables: str) -> Iterator[None]:
    """Refuse every new row of the tables with the error of a full disk."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_REFUSE)
        for table in tables:
            cursor.execute(
                f"CREATE TRIGGER full_disk BEFORE INSERT ON {table}"
                " FOR EACH STATEMENT EXECUTE FUNCTION pg_temp.refuse()"
            )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION pg_temp.refuse CASCADE")
