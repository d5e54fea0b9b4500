"""Statement timeouts: half a second for a figure, two seconds for a search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Final, Never, TypeVar, final

from django.db import OperationalError, connection, transaction
from psycopg.errors import QueryCanceled

from apps.core.errors import Invalid, Unavailable

FIGURE_MS = 500
SEARCH_MS = 2_000

T = TypeVar("T")


@final
class TooSlow:
    """Replace a figure that took Postgres too long: it is neither 0 nor None.

    Python code must check for it with `isinstance`; mypy enforces that. A template that
    does not check shows a dash: every lookup in it returns it again, and it is true.
    """

    def __str__(self) -> str:
        return "—"

    def __getitem__(self, name: str) -> TooSlow:
        return self

    def __iter__(self) -> Iterator[Never]:
        return iter(())


TOO_SLOW: Final = TooSlow()


class _Exceeded(Exception):
    """A statement took longer than it may."""


@contextmanager
def _statements_within(milliseconds: int) -> Iterator[None]:
    """Limit each SQL statement's time; raise `_Exceeded` if one takes longer."""
    is_nested = connection.in_atomic_block
    try:
        with transaction.atomic() if is_nested else nullcontext():
            with connection.execute_wrapper(partial(_limited, milliseconds)):
                yield
            if is_nested:  # SET LOCAL outlives a savepoint
                with connection.cursor() as cursor:
                    cursor.execute("SET LOCAL statement_timeout TO DEFAULT")
    except OperationalError as error:
        if isinstance(error.__cause__, QueryCanceled):
            raise _Exceeded from error
        raise


def _limited(
    milliseconds: int,
    execute: Callable[[str, Any, bool, dict[str, Any]], object],
    sql: str,
    params: Any,
    many: bool,  # noqa: FBT001 - as Django calls it
    context: dict[str, Any],
) -> object:
    """Send a SQL statement together with its time limit.

    Postgres takes both for one transaction, if none is open.
    """
    limit = f"SET LOCAL statement_timeout = {milliseconds}"
    result = execute(f"{limit}; {sql}", params, many, context)
    context["cursor"].nextset()  # behind the answer to SET
    return result


def unless_slow(ask: Callable[[], T], *, within_ms: int | None = None) -> T | TooSlow:
    """Return what a query function returns, or `TOO_SLOW` if it exceeds the time limit.

    The limit is for each SQL statement.
    """
    try:
        with _statements_within(within_ms or FIGURE_MS):
            return ask()
    except _Exceeded:
        return TOO_SLOW


@contextmanager
def search_timeout(
    field: str = "q", by: str = "narrow it down by topic:, day: or problem:"
) -> Iterator[None]:
    """Cancel a SQL search in this block that is too slow.

    Raises Invalid, which says how to narrow the search.
    """
    try:
        with _statements_within(SEARCH_MS):
            yield
    except _Exceeded:
        raise Invalid(field, f"this takes too long; {by}") from None


@contextmanager
def count_timeout() -> Iterator[None]:
    """Cancel a count of rows in this block that is too slow; raise Unavailable."""
    try:
        with _statements_within(SEARCH_MS):
            yield
    except _Exceeded:
        raise Unavailable("Counting this takes too long at the moment.") from None
