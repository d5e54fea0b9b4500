"""Keyset pages: the last page costs as much as the first, and no row comes twice.

They follow the order of the queryset, whose last field no two rows share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db.models import Model, Q, QuerySet

Row = TypeVar("Row", bound=Model)
# The values of the fields that order a list.
Key = Sequence[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice(Generic[Row]):
    """Rows in the order of their list.

    `previous` is the key that others precede, and `next` the one that others follow.
    """

    rows: list[Row]
    previous: Key | None
    next: Key | None


def beyond(rows: QuerySet[Row], key: Key, *, backwards: bool = False) -> QuerySet[Row]:
    """Keep a list's rows after a row's key; or those before it, the nearest first."""
    directed = rows.reverse() if backwards else rows
    return directed.filter(_beyond(_order(rows), key, backwards=backwards))


def read(
    rows: QuerySet[Row],
    limit: int,
    *,
    key: Key | None = None,
    backwards: bool = False,
) -> Slice[Row]:
    """Read a page of a list: its first rows, or those after or before a row's key.

    Returns the rows with the keys of the previous and next page, None without one.
    """
    directed = rows if key is None else beyond(rows, key, backwards=backwards)
    fetched = list(directed[: limit + 1])
    page, has_more = fetched[:limit], len(fetched) > limit
    if backwards:
        page.reverse()
    # The key is that of a row on the page that this one is reached from.
    has_previous = has_more if backwards else key is not None
    has_next = backwards or has_more
    return Slice(
        rows=page,
        previous=_key(page[0], rows) if page and has_previous else None,
        next=_key(page[-1], rows) if page and has_next else None,
    )


def _key(row: Row, rows: QuerySet[Row]) -> Key:
    return [getattr(row, field.removeprefix("-")) for field in _order(rows)]


def _order(rows: QuerySet[Row]) -> list[str]:
    return [str(field) for field in rows.query.order_by]


def _beyond(order: Sequence[str], key: Key, *, backwards: bool) -> Q:
    (first, *others), (value, *values) = order, key
    field = first.removeprefix("-")
    side = "lt" if first.startswith("-") is not backwards else "gt"
    further: dict[str, Any] = {f"{field}__{side}": value}
    if not others:
        return Q(**further)
    tied = Q(**{field: value}) & _beyond(others, values, backwards=backwards)
    # The first half lets the index bound the scan; an OR alone would not.
    return Q(**{f"{field}__{side}e": value}) & (Q(**further) | tied)
