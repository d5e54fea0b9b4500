"""Enqueue Celery tasks after the commit of the rows that they need."""

from __future__ import annotations

from collections.abc import Callable

from django.db import connection, transaction


def enqueue_on_commit(enqueue: Callable[[], object]) -> None:
    """Enqueue a Celery task after the commit of the row that it is for.

    An error of `enqueue` loses the task, never the row.

    The periodic rescue finds the row, so an unavailable Celery broker only delays it.
    """

    def close_and_enqueue() -> None:
        # If the Celery broker hangs, the thread must not keep a connection.
        connection.close()
        enqueue()

    transaction.on_commit(close_and_enqueue, robust=True)
