"""Acknowledge what went wrong in operations that are over."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from django.db import transaction

from apps.audit import services as audit
from apps.audit.services import Action, clean_reason
from apps.core.errors import Absent, Invalid, Refused
from apps.team.rights import Principal, Scope
from apps.triage.models import Acknowledgement, Operation
from apps.triage.operation_states import FINISHED
from apps.triage.progress import TROUBLED, all_counts, counts_of

# In one transaction, each with an audit entry.
MOST_AT_ONCE = 200


@transaction.atomic
def acknowledge(
    *, operation_id: int, reason: str, principal: Principal, now: datetime
) -> Operation:
    """Note that a person has seen which messages of an operation are in trouble.

    Idempotent while no more of them are. Raises Absent; Refused for an operation that
    is not over, or of which no message is in trouble.
    """
    operation = next(iter(_locked([operation_id], principal)), None)
    if operation is None:
        raise Absent(f"There is no operation {operation_id} here.")
    if operation.state not in FINISHED:
        raise Refused(f"Operation {operation_id} is {operation.state}, and not over.")
    troubles = _troubles(counts_of(operation))
    if not any(troubles.values()):
        raise Refused(
            f"No message of operation {operation_id} was refused, came back or is"
            " unknown."
        )
    _store(operation, troubles, clean_reason(reason), principal, now=now)
    return operation


@transaction.atomic
def acknowledge_all(
    *, operation_ids: Collection[int], reason: str, principal: Principal, now: datetime
) -> int:
    """Acknowledge those of some operations that need it; return how many.

    Others are left alone. Raises Invalid for more than `MOST_AT_ONCE`.
    """
    if len(operation_ids) > MOST_AT_ONCE:
        raise Invalid("ids", f"give at most {MOST_AT_ONCE} operations")
    operations = _locked(operation_ids, principal)
    counts, reason = all_counts(operations), clean_reason(reason)
    return sum(
        _store(operation, troubles, reason, principal, now=now)
        for operation in operations
        if operation.state in FINISHED
        and any((troubles := _troubles(counts[operation.pk])).values())
    )


def _locked(ids: Collection[int], principal: Principal) -> list[Operation]:
    """Lock those of some operations that a principal sees, in the order of their ids.

    Raises Forbidden without the right to act on operations.
    """
    principal.require(Scope.OPERATIONS_WRITE)
    visible = Operation.objects.visible_to(principal).select_for_update(no_key=True)
    return list(visible.filter(pk__in=ids).order_by("pk"))


def _troubles(counts: Mapping[str, int]) -> dict[str, int]:
    """Count an operation's messages in each kind of trouble."""
    return {standing.value: counts[standing] for standing in TROUBLED}


def _store(
    operation: Operation,
    troubles: Mapping[str, int],
    reason: str,
    principal: Principal,
    *,
    now: datetime,
) -> bool:
    """Store and record an acknowledgement; tell whether there was none of so many."""
    latest = Acknowledgement.objects.filter(operation=operation).first()
    if latest is not None and latest.covers(troubles):
        return False
    Acknowledgement.objects.update_or_create(
        operation=operation,
        defaults={"actor": str(principal.actor), "at": now, **troubles},
    )
    audit.record(
        action=Action.OPERATION_ACKNOWLEDGED,
        subject=f"operation:{operation.pk}",
        actor=principal.actor,
        reason=reason,
        source=principal.source,
        now=now,
        detail={"verb": operation.verb, "messages": sum(troubles.values())},
    )
    return True
