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
    """Return the neighbours of a row in a list that has the newest row first."""
    return Neighbours(
        newer=_next_id(rows, row, field, newer=True),
        older=_next_id(rows, row, field, newer=False),
    )


def _next_id(
    rows: models.QuerySet[Row], row: Row, field: str, *, newer: bool
) -> int | None:
    """Return the id of the row before or after one; None at the end."""
    beyond = keyset.beyond(row.pk, field=field, at=getattr(row, field), newer=newer)
    sign = "" if newer else "-"
    return (
        rows.filter(beyond)
        .order_by(f"{sign}{field}", f"{sign}pk")
        .values_list("pk", flat=True)
        .first()
    )
