"""Partitions by day, made ahead of time; a default one catches what they do not."""

from __future__ import annotations

from datetime import date, timedelta

from django.db import connection, transaction

DAYS_AHEAD = 7
TABLES = ("poison_failure", "poison_body", "capture_counter")


def make(*, today: date) -> list[str]:
    """Make the partitions of the coming days that are not there; give their names.

    The day that runs is made too, unless the default partition already holds some of
    it: then that day stays there, which costs nothing but its quick removal.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        # Lanes and beat may both come at midnight; and nobody waits long for us.
        cursor.execute("SET LOCAL lock_timeout = '4s'")
        cursor.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended('partitions', 0))"
        )
        return _make_all(today)


def _make_all(today: date) -> list[str]:
    days = [today + timedelta(days=ahead) for ahead in range(DAYS_AHEAD + 1)]
    return [name for table in TABLES for day in days if (name := _make_one(table, day))]


def _make_one(table: str, day: date) -> str | None:
    name = f"{table}_{day:%Y%m%d}"
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s)", [name])
        if cursor.fetchone()[0] is not None or _has_rows(table, day):
            return None
        until = day + timedelta(days=1)
        cursor.execute(  # the names are ours, and a date
            f"CREATE TABLE IF NOT EXISTS {name} PARTITION OF {table}"
            f" FOR VALUES FROM ('{day}') TO ('{until}')"
        )
    return name


def _has_rows(table: str, day: date) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT EXISTS (SELECT FROM {table}_default WHERE day = %s)",  # noqa: S608
            [day],
        )
        return bool(cursor.fetchone()[0])
