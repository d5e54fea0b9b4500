"""Describe an operation for its entries of the audit trail."""

from __future__ import annotations

from apps.triage.models import Operation
from apps.triage.querysets import ItemQuerySet


def audit_detail(operation: Operation) -> dict[str, object]:
    """Return the audit detail that confirmation and end of an operation share."""
    target = operation.target_topic
    order = {"ordered": True} if operation.ordered else {}
    return {
        "verb": operation.verb,
        "query": operation.query,
        "as_of": operation.created_at.isoformat(),
        "total": operation.total,
        "target_topic": None if target is None else target.name,
        "undo_of": operation.undo_of_id,
        **order,
    }


def single_message(items: ItemQuerySet, number: int) -> dict[str, int | None]:
    """Return the message id for the audit entry of an operation on one message."""
    if number != 1:
        return {}
    return {"message": items.values_list("poison_id", flat=True).first()}
