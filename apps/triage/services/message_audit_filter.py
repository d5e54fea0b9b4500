"""Filter the audit trail by message: its own entries, and its operations' entries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from apps.audit.filters import MOST_DECISIONS, TrailFilter
from apps.core.errors import Invalid
from apps.triage.models import Item

MESSAGE: Final = re.compile(r"poison:(\d{1,18})", re.ASCII)


def parse(params: Mapping[str, str]) -> TrailFilter:
    """Parse a filter; for a message, add the operations that acted on it.

    Raises Invalid for the first bad parameter, and if the operations are too many.
    """
    trail_filter = TrailFilter.parse(params)
    message = MESSAGE.fullmatch(trail_filter.subject or "")
    if message is None:
        return trail_filter
    subjects = operations_on(int(message[1]), limit=MOST_DECISIONS + 1)
    if len(subjects) > MOST_DECISIONS:
        remedy = f"more than {MOST_DECISIONS:,} operations held it; ask for one"
        raise Invalid("subject", remedy)
    return replace(trail_filter, operations=tuple(subjects))


def operations_on(message_id: int, *, limit: int) -> list[str]:
    """List the newest confirmed operations on a message, as audit subjects."""
    items = Item.objects.filter(poison=message_id).exclude(operation__confirmed_at=None)
    operations = items.values_list("operation_id", flat=True).order_by("-operation_id")
    return [f"operation:{pk}" for pk in operations[:limit]]
