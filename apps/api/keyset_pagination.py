"""Keyset pages: a deep page costs as much as the first, and no row comes twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, Self, TypeVar
from uuid import UUID

from django.core import signing
from django.db.models import Model, QuerySet
from rest_framework.request import Request
from rest_framework.utils.urls import replace_query_param

from apps.api.request_exceptions import Malformed
from apps.core import keyset

DEFAULT_LIMIT: Final = 50
MOST_LIMIT: Final = 200
# The third member of a cursor that leads to the rows before it.
BACKWARDS: Final = "back"

Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True, kw_only=True, slots=True)
class CursorTime:
    """How a cursor writes the fields that order a list before the id: as one time."""

    time_of: Callable[..., datetime]
    fields_of: Callable[[datetime], Sequence[object]]


AS_IT_IS: Final = CursorTime(time_of=lambda at: at, fields_of=lambda at: [at])


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """A place in a list: the row with this id, and with this time if one orders it.

    It leads to the rows after the place; or, `backwards`, to those before it.
    """

    pk: int | str
    at: datetime | None
    backwards: bool = False

    def key(self, time: CursorTime) -> keyset.Key:
        return [*([] if self.at is None else time.fields_of(self.at)), self.pk]


@dataclass(frozen=True, kw_only=True, slots=True)
class Page(Generic[Row]):
    """Rows of a list; `next` is the cursor of what follows.

    The addresses lead to the pages after and before it, and are None at the ends.
    """

    rows: Sequence[Row]
    next: str | None
    next_url: str | None
    previous_url: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PageWindow:
    """The requested part of a list: at most `limit` rows beside the cursor.

    `name` is the name of the list: a cursor is signed, and valid for one list only.
    `url` is the address of the request.
    """

    name: str
    url: str
    limit: int
    cursor: Cursor | None

    @classmethod
    def parse(cls, request: Request, *, name: str) -> Self:
        """Parse a list's `cursor` and `limit`; raises Malformed naming the bad one."""
        params = request.query_params
        cursor = params.get("cursor")
        return cls(
            name=name,
            url=request.build_absolute_uri(),
            limit=_limit(params.get("limit")),
            cursor=_decoded(cursor, name) if cursor else None,
        )

    def page(self, rows: QuerySet[Row], time: CursorTime = AS_IT_IS) -> Page[Row]:
        """Return the page of rows that a list's cursor and limit select, in order."""
        cursor = self.cursor
        part = keyset.read(
            rows,
            self.limit,
            key=None if cursor is None else cursor.key(time),
            backwards=cursor is not None and cursor.backwards,
        )
        following = self._cursor(part.next, time)
        previous = self._cursor(part.previous, time, backwards=True)
        return Page(
            rows=part.rows,
            next=following,
            next_url=self._url(following),
            previous_url=self._url(previous),
        )

    def _cursor(
        self, key: keyset.Key | None, time: CursorTime, *, backwards: bool = False
    ) -> str | None:
        if key is None:
            return None
        *before_id, pk = key
        at = time.time_of(*before_id) if before_id else None
        pk = str(pk) if isinstance(pk, UUID) else pk
        return _encoded(Cursor(pk=pk, at=at, backwards=backwards), self.name)

    def _url(self, cursor: str | None) -> str | None:
        return cursor and replace_query_param(self.url, "cursor", cursor)


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


def _encoded(cursor: Cursor, name: str) -> str:
    at = None if cursor.at is None else cursor.at.isoformat()
    direction = [BACKWARDS] if cursor.backwards else []
    return signing.dumps([cursor.pk, at, *direction], salt=_salt(name))


def _decoded(cursor: str, name: str) -> Cursor:
    try:
        pk, at, *direction = signing.loads(cursor, salt=_salt(name))
    except signing.BadSignature:
        remedy = "send the `next` of an earlier answer of this list, or leave it out"
        raise Malformed("cursor", remedy) from None
    return Cursor(
        pk=pk,
        at=None if at is None else datetime.fromisoformat(at),
        backwards=direction == [BACKWARDS],
    )


def _salt(name: str) -> str:
    return f"poisonweb.cursor.{name}"
