"""Helpers for our own SQL: statements of querysets, and how Postgres plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import Field, QuerySet
from psycopg import Cursor


def statement_of(rows: QuerySet[Any, Any]) -> tuple[str, tuple[Any, ...]]:
    """Return a queryset's SQL and its parameters, also if it has no rows.

    Django writes no SQL for a queryset that must be empty, such as `pk__in=[]`.
    """
    try:
        return rows.query.sql_with_params()
    except EmptyResultSet:
        columns = ", ".join(
            f'NULL::{_type_of(name, rows)} AS "{name}"'
            for name in rows.query.values_select
        )
        return f"SELECT {columns} WHERE false", ()


def _type_of(column: str, rows: QuerySet[Any, Any]) -> str:
    """Return the type in Postgres of a column that a queryset selects."""
    meta = rows.query.get_meta()
    field = meta.pk if column == "pk" else meta.get_field(column)
    assert isinstance(field, Field)  # noqa: S101 - what has a column
    return field.rel_db_type(connection) or "bigint"


def read_by_index() -> None:
    """Keep Postgres from reading whole tables until this transaction ends.

    Use it for small steps over large tables. A session keeps its plans for checking
    foreign keys: if made while a table was empty, they later read all of it each time.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")


@contextmanager
def pipeline() -> Iterator[None]:
    """Send SQL statements without waiting for the answer to the one before.

    Only reading an answer waits. Use it inside a transaction: an error of a statement
    may be raised at a later one, or at the end, and rolls back all.
    """
    connection.ensure_connection()
    with connection.wrap_database_errors, connection.connection.pipeline():
        yield


def binary_rows(statement: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return a query's rows, sent in binary: text has two digits for each byte."""
    connection.ensure_connection()
    with (
        connection.wrap_database_errors,
        Cursor(connection.connection) as cursor,
    ):
        # The words of a statement of our own.
        return cursor.execute(statement, values, binary=True).fetchall()
