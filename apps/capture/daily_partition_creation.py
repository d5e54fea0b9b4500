"""Make partitions by day, ahead of time; a default partition takes all other rows.

A function in Postgres makes them, because it runs as the owner of the tables: the role
of the application may own nothing (`poisonweb.database_role_rights`).
"""

from __future__ import annotations

from datetime import date

from django.db import connection, transaction

MAKER = "poisonweb_make_partitions(date)"


def make(*, today: date) -> list[str]:
    """Make missing daily partitions of failures and counters; return their names.

    They reach a week ahead. If the default partition already has rows of today, today
    gets no partition of its own. The only cost is that these rows cannot be removed as
    a partition later.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT poisonweb_make_partitions(%s)", [today])
        return [name for (name,) in cursor.fetchall()]
