"""The filter of lists that are searched and paged by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from django.db.models import QuerySet

Rows = TypeVar("Rows", bound=QuerySet[Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class NameFilter:
    """A filter: rows whose name contains `name` and sorts behind `after`."""

    name: str = ""
    after: str = ""

    def of(self, rows: Rows) -> Rows:
        """Keep the endpoints or outboxes whose name contains the text and sorts after.

        The filter has both: the text, and the name after which the page begins.
        """
        if self.name:
            rows = rows.filter(name__icontains=self.name)
        return rows.filter(name__gt=self.after)
