"""Keyset pages: the last page costs as much as the first, and no row comes twice."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet

Row = TypeVar("Row", bound=Model)


def beyond(
    pk: int, *, field: str = "", at: datetime | None = None, newer: bool = False
) -> Q:
    """Match the older rows than one, or the newer, in the order of a time and the id.

    Without a `field`, the id alone orders them.
    """
    side = "gt" if newer else "lt"
    by_number: dict[str, Any] = {f"pk__{side}": pk}
    if not field:
        return Q(**by_number)
    by_time: dict[str, Any] = {f"{field}__{side}": at}
    tied: dict[str, Any] = {field: at, **by_number}
    # The first half lets the index bound the scan; an OR alone would not.
    return Q(**{f"{field}__{side}e": at}) & (Q(**by_time) | Q(**tied))


def head(rows: QuerySet[Row], limit: int) -> tuple[list[Row], bool]:
    """Read the first rows, and tell whether more follow."""
    fetched = list(rows[: limit + 1])
    return fetched[:limit], len(fetched) > limit
