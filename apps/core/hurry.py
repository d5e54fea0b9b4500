"""Figures that a page can do without: Postgres has half a second for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Never, TypeVar, final

from django.db import OperationalError, connection, transaction
from psycopg.errors import QueryCanceled

LONGEST_MS = 500

T = TypeVar("T")


@final
class TooSlow:
    """Stands for a figure that Postgres did not give in time: it is not 0, nor none.

    Python must ask for it by `isinstance`, or mypy complains. A template that does not
    ask gets a dash: all that it looks up in one is that figure again, and it is true.
    """

    def __str__(self) -> str:
        return "—"

    def __getitem__(self, name: str) -> TooSlow:
        return self

    def __iter__(self) -> Iterator[Never]:
        return iter(())


TOO_SLOW: Final = TooSlow()


def unless_slow(ask: Callable[[], T], *, within_ms: int = LONGEST_MS) -> T | TooSlow:
    """Ask Postgres for a figure, each statement of it within this time."""
    is_nested = connection.in_atomic_block
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = {within_ms}")
            figure = ask()
            if is_nested:  # what is set in a savepoint outlives it
                cursor.execute("SET LOCAL statement_timeout TO DEFAULT")
            return figure
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise
        return TOO_SLOW
