"""Pause, resume and cancel a confirmed operation, or change its rate.

Each is a row that the run reads before it claims more: within a second, and one claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from apps.audit import services as audit
from apps.audit.services import Action, clean_reason
from apps.core.errors import Absent, Refused
from apps.team.rights import Principal, Scope
from apps.triage.models import Operation
from apps.triage.operation_states import FINISHED, OperationState
from apps.triage.services.earlier_layout_conversion import require_converted
from apps.triage.services.pacing import require_rate


@dataclass(frozen=True, slots=True)
class ControlStep:
    """A change of an operation's state: where to, and how people and audit name it."""

    to: OperationState
    action: Action
    deed: str


PAUSE = ControlStep(OperationState.PAUSED, Action.OPERATION_PAUSED, "paused")
RESUME = ControlStep(OperationState.QUEUED, Action.OPERATION_RESUMED, "resumed")
CANCEL = ControlStep(
    OperationState.CANCELLING, Action.OPERATION_CANCEL_REQUESTED, "cancelled"
)


class OperationOver(Refused):
    """The operation is over: nothing of it can be changed any more."""

    problem = "operation-over"


@transaction.atomic
def change_state(
    step: ControlStep,
    *,
    operation_id: int,
    reason: str,
    principal: Principal,
    now: datetime,
) -> Operation:
    """Pause, resume or cancel an operation; idempotent.

    Raises Absent, OperationOver, or Refused for a step that its state does not allow.
    """
    reason = clean_reason(reason)
    operation = _lock_unfinished(operation_id, principal)
    if operation.state == step.to or (
        step is RESUME and operation.state == OperationState.RUNNING
    ):
        return operation
    if step is RESUME and operation.state == OperationState.CANCELLING:
        raise Refused("It is being cancelled, and cannot be resumed.")
    this = Operation.objects.filter(pk=operation.pk)
    # A person who resumes what the ramp has paused goes on without it.
    ramp = None if step is RESUME and operation.paused_because else operation.ramp
    # It is tried at once, also while it waits for a broker that is away.
    if not this.transition(to=step.to, retry_at=None, paused_because="", ramp=ramp):
        raise Refused(f"It is {operation.state}, and cannot be {step.deed}.")
    _record(step.action, operation, reason, principal, now=now, detail={})
    operation.refresh_from_db()
    return operation


@transaction.atomic
def set_rate(
    *,
    operation_id: int,
    rate: int | None,
    reason: str = "",
    principal: Principal,
    now: datetime,
) -> Operation:
    """Set an operation's highest rate in messages a second; None for no limit."""
    reason = clean_reason(reason)
    require_rate(rate)
    operation = _lock_unfinished(operation_id, principal)
    if not operation.may_have_a_rate:
        raise Refused("It sends nothing, so it has no rate.")
    if operation.rate != rate:
        before, operation.rate = operation.rate, rate
        operation.save(update_fields=["rate"])
        detail: dict[str, object] = {"before": before, "after": rate}
        _record(
            Action.OPERATION_RATE_CHANGED,
            operation,
            reason,
            principal,
            now=now,
            detail=detail,
        )
    return operation


def _lock_unfinished(operation_id: int, principal: Principal) -> Operation:
    """Lock a visible unfinished operation; raises Absent or OperationOver.

    Raises NotConverted for one of the release before.
    """
    principal.require(Scope.OPERATIONS_WRITE)
    visible = Operation.objects.visible_to(principal)
    operation = visible.select_for_update(no_key=True).filter(pk=operation_id).first()
    if operation is None:
        raise Absent(f"There is no operation {operation_id} here.")
    if operation.state in FINISHED:
        raise OperationOver(f"Operation {operation_id} is {operation.state} already.")
    require_converted(operation)
    return operation


def _record(
    action: Action,
    operation: Operation,
    reason: str,
    principal: Principal,
    *,
    now: datetime,
    detail: dict[str, object],
) -> None:
    """Append an operation's change to the audit."""
    audit.record(
        action=action,
        subject=f"operation:{operation.pk}",
        actor=principal.actor,
        reason=reason,
        source=principal.source,
        now=now,
        detail={"verb": operation.verb, **detail},
    )
