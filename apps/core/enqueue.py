"""Enqueue Celery tasks once the rows that they are about are committed."""

from __future__ import annotations

from collections.abc import Callable

from django.db import connection, transaction


def enqueue_on_commit(enqueue: Callable[[], object]) -> None:
    """Call `enqueue` after the commit; the task may get lost, the row does not.

    The periodic rescue finds the row, so a Celery broker that is away costs only time.
    """

    def close_and_enqueue() -> None:
        # Holding no connection: a Celery broker that hangs would take them all.
        connection.close()
        enqueue()

    transaction.on_commit(close_and_enqueue, robust=True)
