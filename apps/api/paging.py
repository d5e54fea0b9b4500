"""Pages by key: the deepest costs what the first one does, and no row comes twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Self, TypeVar

from django.core import signing
from django.db.models import Model, QuerySet
from django.http import QueryDict

from apps.api.refusals import Malformed

DEFAULT_LIMIT = 50
MOST_LIMIT = 200

Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A row's place in its list; `at` is None where the number alone orders it."""

    pk: int
    at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Page(Generic[Row]):
    rows: Sequence[Row]
    next: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The part of a list that is asked for: at most `limit` rows below `after`.

    `name` is the list's: a cursor is signed, and for one list only.
    """

    name: str
    limit: int
    after: Place | None

    @classmethod
    def parse(cls, told: QueryDict, *, name: str) -> Self:
        """Read `cursor` and `limit`; raises Malformed naming the one that is bad."""
        cursor = told.get("cursor")
        return cls(
            name=name,
            limit=_limit(told.get("limit")),
            after=_opened(cursor, name) if cursor else None,
        )

    def cut(self, rows: QuerySet[Row], place: Callable[[Row], Place]) -> Page[Row]:
        """Cut this window out of rows that begin below `after`."""
        found = list(rows[: self.limit + 1])
        shown = found[: self.limit]
        more = len(found) > self.limit
        return Page(
            rows=shown, next=_sealed(place(shown[-1]), self.name) if more else None
        )


def _limit(value: str | None) -> int:
    if value is None:
        return DEFAULT_LIMIT
    # The length is looked at first: Python refuses to read very long integers.
    usable = value.isascii() and value.isdigit() and len(value) <= len(str(MOST_LIMIT))
    if not usable or not 1 <= int(value) <= MOST_LIMIT:
        raise Malformed("limit", f"send a number from 1 to {MOST_LIMIT}")
    return int(value)


def _sealed(place: Place, name: str) -> str:
    at = None if place.at is None else place.at.isoformat()
    return signing.dumps([place.pk, at], salt=_salt(name))


def _opened(cursor: str, name: str) -> Place:
    try:
        pk, at = signing.loads(cursor, salt=_salt(name))
    except signing.BadSignature:
        remedy = "send the `next` of an earlier answer of this list, or leave it out"
        raise Malformed("cursor", remedy) from None
    return Place(pk=pk, at=None if at is None else datetime.fromisoformat(at))


def _salt(name: str) -> str:
    return f"poisonweb.cursor.{name}"
