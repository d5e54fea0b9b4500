"""Keyset pages in both directions: the last page costs as much as the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Generic, Self, TypeVar
from uuid import UUID

from django.db import models

from apps.core import keyset
from apps.core.errors import Invalid
from apps.core.statement_timeouts import TooSlow, unless_slow
from poisonguard.contract import uuid_of

PAGE_SIZE = 50
MOST_COUNTED = 10_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_ID = 2**63 - 1
MOST_DIGITS = len(str(MAX_ID))
NO_SUCH_PLACE = "this page has no such place"

Row = TypeVar("Row", bound=models.Model)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListCursor:
    """Where a page begins: behind the row with this id, and time if one orders them."""

    newer: bool
    pk: int | UUID
    at: datetime | None = None

    @classmethod
    def parse(cls, text: str, *, has_time: bool = True) -> Self | None:
        """Parse the cursor of a list's page; raises Invalid for a wrong one.

        Returns None for an empty text.
        """
        if not text:
            return None
        direction, *numbers = text.split(".")
        is_one = direction in {"newer", "older"} and len(numbers) == 1 + has_time
        if not is_one or not all(map(_is_number, numbers)):
            raise Invalid("cursor", NO_SUCH_PLACE)
        at = None
        if has_time:
            try:
                at = EPOCH + timedelta(microseconds=int(numbers[0]))
            except OverflowError:
                raise Invalid("cursor", NO_SUCH_PLACE) from None
        return cls(newer=direction == "newer", at=at, pk=int(numbers[-1]))

    @classmethod
    def parse_uuid(cls, text: str) -> Self | None:
        """Parse a cursor of rows whose ids are UUIDs; raises Invalid for a wrong one.

        Returns None for an empty text.
        """
        if not text:
            return None
        direction, _, rest = text.partition(".")
        pk = uuid_of(rest)
        if direction not in {"newer", "older"} or pk is None:
            raise Invalid("cursor", NO_SUCH_PLACE)
        return cls(newer=direction == "newer", pk=pk)

    @classmethod
    def of(cls, key: keyset.Key | None, *, newer: bool) -> Self | None:
        """Make the cursor of a row's key: an id, or a time and an id; None for None."""
        if key is None:
            return None
        *times, pk = key
        return cls(newer=newer, at=times[0] if times else None, pk=pk)

    @property
    def key(self) -> keyset.Key:
        return [self.pk] if self.at is None else [self.at, self.pk]

    def __str__(self) -> str:
        direction = "newer" if self.newer else "older"
        if self.at is None:
            return f"{direction}.{self.pk}"
        micros = (self.at - EPOCH) // timedelta(microseconds=1)
        return f"{direction}.{micros}.{self.pk}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < MOST_DIGITS


@dataclass(frozen=True, kw_only=True, slots=True)
class ListPage(Generic[Row]):
    """Rows, newest first, with the cursors of the pages before and after."""

    rows: Sequence[Row]
    newer: ListCursor | None
    older: ListCursor | None


def page(
    rows: models.QuerySet[Row], *, field: str = "", cursor: ListCursor | None
) -> ListPage[Row]:
    """Return a page of rows, the newest first: by a time field, or by id alone."""
    part = keyset.read(
        rows.order_by(*(f"-{name}" for name in (field, "pk") if name)),
        PAGE_SIZE,
        key=None if cursor is None else cursor.key,
        backwards=cursor is not None and cursor.newer,
    )
    return ListPage(
        rows=part.rows,
        newer=ListCursor.of(part.previous, newer=True),
        older=ListCursor.of(part.next, newer=False),
    )


@dataclass(frozen=True, slots=True)
class BoundedCount:
    """A number of rows, counted up to a limit."""

    number: int

    def __str__(self) -> str:
        if self.number > MOST_COUNTED:
            return f"{MOST_COUNTED:,}+"
        return f"{self.number:,}"

    @property
    def is_one(self) -> bool:
        """Tell whether the count is exactly one, for "1 message" in texts."""
        return self.number == 1


def bounded_count(rows: models.QuerySet[Row]) -> BoundedCount | TooSlow:
    """Count a list's rows up to a limit; return TooSlow if Postgres takes too long."""
    limited = rows.order_by().values("pk")[: MOST_COUNTED + 1]
    number = unless_slow(limited.count)
    return number if isinstance(number, TooSlow) else BoundedCount(number)
