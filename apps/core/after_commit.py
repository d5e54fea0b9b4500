"""The word to the workers, given once the row that it is about is committed."""

from __future__ import annotations

from collections.abc import Callable

from django.db import connection, transaction


def tell(word: Callable[[], object]) -> None:
    """Call `word` after the commit; it may get lost, the row does not.

    Whoever rescues finds the row, so a Celery broker that is away costs only time.
    """

    def told() -> None:
        # Holding no connection: a Celery broker that hangs would take them all.
        connection.close()
        word()

    transaction.on_commit(told, robust=True)
