"""Numbers that an answer can do without: nobody waits long for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.db import OperationalError, connection, transaction
from psycopg.errors import QueryCanceled

LONGEST_MS = 500

T = TypeVar("T")
U = TypeVar("U")


def unless_slow(ask: Callable[[], T], *, instead: U) -> T | U:
    """Ask Postgres something; give the other value if it takes too long to say."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = {LONGEST_MS}")
            return ask()
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise
        return instead
