"""Keyset pages in both directions: the last page costs as much as the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Generic, Self, TypeVar

from django.db import models
from django.db.models import Q

from apps.core.errors import Invalid
from apps.core.timeouts import TooSlow, unless_slow

PAGE_SIZE = 50
MOST_COUNTED = 10_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_ID = 2**63 - 1
MOST_DIGITS = len(str(MAX_ID))

Row = TypeVar("Row", bound=models.Model)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """Where a page begins: behind the row with this time and id."""

    newer: bool
    at: datetime
    pk: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a cursor; raises Invalid for any other text."""
        if not text:
            return None
        try:
            direction, micros, pk = text.split(".")
            at = EPOCH + timedelta(microseconds=int(micros))
            number = min(int(pk), MAX_ID)
        except (ValueError, OverflowError):
            raise Invalid("cursor", "this page has no such place") from None
        return cls(newer=direction == "newer", at=at, pk=number)

    def __str__(self) -> str:
        micros = (self.at - EPOCH) // timedelta(microseconds=1)
        return f"{'newer' if self.newer else 'older'}.{micros}.{self.pk}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Page(Generic[Row]):
    """Rows, newest first, with the cursors of the pages before and after."""

    rows: Sequence[Row]
    newer: Cursor | None
    older: Cursor | None


def page(rows: models.QuerySet[Row], *, field: str, cursor: Cursor | None) -> Page[Row]:
    """Return a page of rows ordered by a time field, the newest first."""
    backwards = cursor is not None and cursor.newer
    sign = "" if backwards else "-"
    beyond = rows if cursor is None else rows.filter(_beyond(field, cursor))
    fetched = list(beyond.order_by(f"{sign}{field}", f"{sign}pk")[: PAGE_SIZE + 1])
    more = len(fetched) > PAGE_SIZE
    page_rows = fetched[:PAGE_SIZE][:: -1 if backwards else 1]
    has_newer = more if backwards else cursor is not None
    has_older = True if backwards else more
    return Page(
        rows=page_rows,
        newer=_cursor(page_rows[0], field, newer=True)
        if page_rows and has_newer
        else None,
        older=_cursor(page_rows[-1], field, newer=False)
        if page_rows and has_older
        else None,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberCursor:
    """Where a page begins among rows ordered by id."""

    newer: bool
    pk: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a cursor; raises Invalid for any other text."""
        if not text:
            return None
        direction, _, number = text.partition(".")
        usable = number.isascii() and number.isdigit() and len(number) < MOST_DIGITS
        if direction not in {"newer", "older"} or not usable:
            raise Invalid("cursor", "this page has no such place")
        return cls(newer=direction == "newer", pk=int(number))

    def __str__(self) -> str:
        return f"{'newer' if self.newer else 'older'}.{self.pk}"


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberedPage(Generic[Row]):
    """Rows, the highest id first, with the cursors of the pages before and after."""

    rows: Sequence[Row]
    newer: NumberCursor | None
    older: NumberCursor | None


def page_by_number(
    rows: models.QuerySet[Row], cursor: NumberCursor | None
) -> NumberedPage[Row]:
    """Return a page of rows, the highest id first."""
    backwards = cursor is not None and cursor.newer
    if cursor is not None:
        rows = rows.filter(**{f"pk__{'gt' if cursor.newer else 'lt'}": cursor.pk})
    fetched = list(rows.order_by("pk" if backwards else "-pk")[: PAGE_SIZE + 1])
    more = len(fetched) > PAGE_SIZE
    page_rows = fetched[:PAGE_SIZE][:: -1 if backwards else 1]
    has_newer = more if backwards else cursor is not None
    has_older = True if backwards else more
    return NumberedPage(
        rows=page_rows,
        newer=NumberCursor(newer=True, pk=page_rows[0].pk)
        if page_rows and has_newer
        else None,
        older=NumberCursor(newer=False, pk=page_rows[-1].pk)
        if page_rows and has_older
        else None,
    )


def _beyond(field: str, cursor: Cursor) -> Q:
    side = "gt" if cursor.newer else "lt"
    tied = Q(**{field: cursor.at, f"pk__{side}": cursor.pk})
    # The first half lets the index bound the scan; an OR alone would not.
    return Q(**{f"{field}__{side}e": cursor.at}) & (
        Q(**{f"{field}__{side}": cursor.at}) | tied
    )


def _cursor(row: Row, field: str, *, newer: bool) -> Cursor:
    return Cursor(newer=newer, at=getattr(row, field), pk=row.pk)


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows, counted up to a limit."""

    number: int

    def __str__(self) -> str:
        if self.number > MOST_COUNTED:
            return f"{MOST_COUNTED:,}+"
        return f"{self.number:,}"

    @property
    def is_one(self) -> bool:
        return self.number == 1


def bounded_count(rows: models.QuerySet[Row]) -> Count | TooSlow:
    """Count rows up to a limit, with a time-out: a list must not wait for its total."""
    limited = rows.order_by().values("pk")[: MOST_COUNTED + 1]
    number = unless_slow(limited.count)
    return number if isinstance(number, TooSlow) else Count(number)
