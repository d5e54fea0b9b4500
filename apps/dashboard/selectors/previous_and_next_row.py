"""Find the rows before and after one row of a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from django.db import models

from apps.core import keyset

Row = TypeVar("Row", bound=models.Model)


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbours:
    newer: int | None
    older: int | None


def neighbours(rows: models.QuerySet[Row], row: Row, *, field: str) -> Neighbours:
    """Return the ids of the next newer and next older row in a list, or None.

    The list of messages or problems is sorted by `field`, the newest first.
    """
    return Neighbours(
        newer=_next_id(rows, row, field, newer=True),
        older=_next_id(rows, row, field, newer=False),
    )


def _next_id(
    rows: models.QuerySet[Row], row: Row, field: str, *, newer: bool
) -> int | None:
    key = [getattr(row, field), row.pk]
    newest_first = rows.order_by(f"-{field}", "-pk")
    others = keyset.beyond(newest_first, key, backwards=newer)
    return others.values_list("pk", flat=True).first()
