"""Find the rows before and after one row of a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from django.db import models
from django.db.models import Q

Row = TypeVar("Row", bound=models.Model)


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbours:
    newer: int | None
    older: int | None


def neighbours(rows: models.QuerySet[Row], row: Row, *, field: str) -> Neighbours:
    """Return the neighbours of a row in a list that has the newest row first."""
    return Neighbours(
        newer=_next(rows, row, field, side="gt"),
        older=_next(rows, row, field, side="lt"),
    )


def _next(rows: models.QuerySet[Row], row: Row, field: str, *, side: str) -> int | None:
    at = getattr(row, field)
    beyond = Q(**{f"{field}__{side}": at}) | Q(**{field: at, f"pk__{side}": row.pk})
    sign = "-" if side == "lt" else ""
    nearest = rows.filter(beyond, **{f"{field}__{side}e": at})
    return (
        nearest.order_by(f"{sign}{field}", f"{sign}pk")
        .values_list("pk", flat=True)
        .first()
    )
