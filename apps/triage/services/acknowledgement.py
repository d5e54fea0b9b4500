"""Acknowledge what went wrong in an operation that is over."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from apps.audit import services as audit
from apps.audit.services import Action, clean_reason
from apps.core.errors import Absent, Refused
from apps.team.rights import Principal, Scope
from apps.triage.models import Acknowledgement, Operation
from apps.triage.operation_states import FINISHED
from apps.triage.progress import ItemTally, counts_of


@transaction.atomic
def acknowledge(
    *, operation_id: int, reason: str, principal: Principal, now: datetime
) -> Operation:
    """Note that a person has seen which messages of an operation are in trouble.

    Idempotent while no more of them are. Raises Absent; Refused for an operation that
    is not over, or of which no message is in trouble.
    """
    principal.require(Scope.OPERATIONS_WRITE)
    reason = clean_reason(reason)
    visible = Operation.objects.visible_to(principal)
    operation = visible.select_for_update(no_key=True).filter(pk=operation_id).first()
    if operation is None:
        raise Absent(f"There is no operation {operation_id} here.")
    if operation.state not in FINISHED:
        raise Refused(f"Operation {operation_id} is {operation.state}, and not over.")
    troubled = ItemTally(total=operation.total, counts=counts_of(operation)).troubled
    if not troubled:
        raise Refused(
            f"No message of operation {operation_id} was refused, came back or is"
            " unknown."
        )
    of_all = Acknowledgement.objects.filter(operation=operation, troubled__gte=troubled)
    if not of_all.exists():
        Acknowledgement.objects.update_or_create(
            operation=operation,
            defaults={"actor": str(principal.actor), "at": now, "troubled": troubled},
        )
        audit.record(
            action=Action.OPERATION_ACKNOWLEDGED,
            subject=f"operation:{operation.pk}",
            actor=principal.actor,
            reason=reason,
            source=principal.source,
            now=now,
            detail={"verb": operation.verb, "messages": troubled},
        )
    return operation
