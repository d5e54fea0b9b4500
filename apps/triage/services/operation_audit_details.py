"""Describe an operation for its entries of the audit trail."""

from __future__ import annotations

from collections.abc import Mapping

from apps.triage.item_kinds import kind_of
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
    kind = {} if operation.is_about_poisons else {"items": operation.kind}
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
        **kind,
    }


def single_item_detail(operation: Operation) -> Mapping[str, object]:
    """Return the audit detail that names an operation's only item, else {}."""
    if operation.will_act != 1:
        return {}
    return kind_of(operation).single_item_detail(operation)
