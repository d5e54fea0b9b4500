"""A search that takes too long is ended, so that nobody else has to wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import OperationalError, connection, transaction
from psycopg.errors import QueryCanceled

from apps.core.errors import Invalid

PATIENCE_MS = 2_000


@contextmanager
def patience() -> Iterator[None]:
    """Give each query within two seconds; raises Invalid where that is not enough."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = {PATIENCE_MS}")
            yield
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise
        remedy = "this takes too long; narrow it down by topic:, day: or problem:"
        raise Invalid("q", remedy) from None
