"""Partitions by day, made ahead of time; a default one catches what they do not.

A function of Postgres makes them, for it runs as the owner of the tables: the role of
the application may own nothing (`poisonweb.application_role`).
"""

from __future__ import annotations

from datetime import date

from django.db import connection, transaction

MAKER = "poisonweb_make_partitions(date)"


def make(*, today: date) -> list[str]:
    """Make the partitions of today and a week ahead that are missing; give their names.

    The day that runs is made too, unless the default partition already holds some of
    it: then that day stays there, which costs nothing but its quick removal.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT poisonweb_make_partitions(%s)", [today])
        return [name for (name,) in cursor.fetchall()]
