"""Filter the audit trail by an item: its own entries, and its operations' entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from django.db import connection

from apps.audit.filters import MOST_DECISIONS, TrailFilter
from apps.core.errors import Invalid
from apps.triage.item_kinds import ItemKey, ItemKind, kind_named, kind_of_subject
from apps.triage.operation_states import ItemKindName


def parse(params: Mapping[str, str]) -> TrailFilter:
    """Parse an audit filter; for an operation's item, add its operations.

    Raises Invalid for the first bad parameter, and if the operations are too many.
    """
    trail_filter = TrailFilter.parse(params)
    item = kind_of_subject(trail_filter.subject or "")
    if item is None:
        return trail_filter
    subjects = _operations_on(*item, limit=MOST_DECISIONS + 1)
    if len(subjects) > MOST_DECISIONS:
        remedy = f"more than {MOST_DECISIONS:,} operations held it; ask for one"
        raise Invalid("subject", remedy)
    return replace(trail_filter, operations=tuple(subjects))


def operations_on(
    key: ItemKey, *, kind: ItemKindName = ItemKindName.POISON, limit: int
) -> list[str]:
    """List the newest confirmed operations on an item, as audit subjects."""
    return _operations_on(kind_named(kind), key, limit=limit)


def _operations_on(kind: ItemKind, key: ItemKey | str, *, limit: int) -> list[str]:
    statement = kind.sql(
        "SELECT operation_id FROM {items} item"
        " JOIN triage_operation operation ON operation.id = item.operation_id"
        " WHERE item.{key} = %s AND operation.confirmed_at IS NOT NULL"
        " ORDER BY operation_id DESC LIMIT %s"
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, [key, limit])
        return [f"operation:{operation}" for (operation,) in cursor.fetchall()]
