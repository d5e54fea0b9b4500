"""Keyset pages: a deep page costs as much as the first, and no row comes twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Self, TypeVar

from django.core import signing
from django.db.models import Model, QuerySet
from django.http import QueryDict

from apps.api.refusals import Malformed
from apps.core import keyset

DEFAULT_LIMIT = 50
MOST_LIMIT = 200

Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowKey:
    """The sort key of a row in its list; `at` is None where the pk alone orders it."""

    pk: int
    at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Page(Generic[Row]):
    rows: Sequence[Row]
    next: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The requested part of a list: at most `limit` rows below `after`.

    `name` is the name of the list: a cursor is signed, and valid for one list only.
    """

    name: str
    limit: int
    after: RowKey | None

    @classmethod
    def parse(cls, params: QueryDict, *, name: str) -> Self:
        """Read `cursor` and `limit`; raises Malformed with the name of the bad one."""
        cursor = params.get("cursor")
        return cls(
            name=name,
            limit=_limit(params.get("limit")),
            after=_decoded(cursor, name) if cursor else None,
        )

    def page(self, rows: QuerySet[Row], key_of: Callable[[Row], RowKey]) -> Page[Row]:
        """Read this window from rows that begin below `after`."""
        page, has_more = keyset.head(rows, self.limit)
        return Page(
            rows=page, next=_encoded(key_of(page[-1]), self.name) if has_more else None
        )


def _limit(value: str | None) -> int:
    if value is None:
        return DEFAULT_LIMIT
    # Check the length first: Python refuses to read very long integers.
    is_number = (
        value.isascii() and value.isdigit() and len(value) <= len(str(MOST_LIMIT))
    )
    if not is_number or not 1 <= int(value) <= MOST_LIMIT:
        raise Malformed("limit", f"send a number from 1 to {MOST_LIMIT}")
    return int(value)


def _encoded(key: RowKey, name: str) -> str:
    at = None if key.at is None else key.at.isoformat()
    return signing.dumps([key.pk, at], salt=_salt(name))


def _decoded(cursor: str, name: str) -> RowKey:
    try:
        pk, at = signing.loads(cursor, salt=_salt(name))
    except signing.BadSignature:
        remedy = "send the `next` of an earlier answer of this list, or leave it out"
        raise Malformed("cursor", remedy) from None
    return RowKey(pk=pk, at=None if at is None else datetime.fromisoformat(at))


def _salt(name: str) -> str:
    return f"poisonweb.cursor.{name}"
