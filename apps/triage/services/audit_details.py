"""Describe an operation for its entries of the audit trail."""

from __future__ import annotations

from apps.triage.models import Operation
from apps.triage.services.operation_redirects import names_of


def audit_detail(operation: Operation) -> dict[str, object]:
    """Return the audit detail that confirmation and end of an operation share."""
    target = operation.target_topic
    order = {"ordered": True} if operation.ordered else {}
    rate = {"rate": operation.rate} if operation.rate else {}
    redirects = names_of(operation)
    elsewhere = {"redirects": redirects} if redirects else {}
    ramp = {"ramp": operation.ramp} if operation.ramp else {}
    return {
        "verb": operation.verb,
        "query": operation.query,
        "as_of": operation.created_at.isoformat(),
        "total": operation.total,
        "target_topic": None if target is None else target.name,
        "undo_of": operation.undo_of_id,
        **elsewhere,
        **order,
        **rate,
        **ramp,
    }


def single_message(operation: Operation) -> dict[str, int]:
    """Return the message id for the audit entry of an operation on one message."""
    if operation.will_act != 1:
        return {}
    item = operation.items.not_skipped().first() or operation.items.first()
    return {"message": item.poison_id} if item else {}
