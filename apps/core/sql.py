"""Statements of our own: with a part that the ORM wrote, and how they are planned."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import QuerySet


def statement_of(rows: QuerySet[Any, Any]) -> tuple[str, tuple[Any, ...]]:
    """Give the statement of a queryset and its parameters, also where it has no rows.

    Django writes none for what it knows to be empty, such as the poisons of no topic.
    """
    try:
        return rows.query.sql_with_params()
    except EmptyResultSet:
        columns = ", ".join(
            f'NULL::bigint AS "{name}"' for name in rows.query.values_select
        )
        return f"SELECT {columns} WHERE false", ()


def read_by_index() -> None:
    """Keep Postgres from reading whole tables until this transaction ends.

    For small steps over large tables. A session keeps its plans for checking foreign
    keys: made while a table is empty, they would read all of it for each row, later on.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
