"""Pause, resume and cancel a confirmed operation, or change its rate.

A ramp that paused its operation begins with its first step again when a person resumes
the operation, unless that person removes it.

Each is a row that the run reads before it claims more: within a second, and one claim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import transaction

from apps.audit import services as audit
from apps.audit.services import Action, clean_reason
from apps.core.errors import Absent, Refused
from apps.team.rights import Principal, Scope
from apps.triage.models import Operation
from apps.triage.operation_states import FINISHED, OperationState
from apps.triage.progress import pace_from_here
from apps.triage.services.earlier_layout_conversion import require_converted
from apps.triage.services.pacing import require_rate
from apps.triage.services.ramp_steps import first_step_again


@dataclass(frozen=True, slots=True)
class ControlStep:
    """A change of an operation's state: where to, and how people and audit name it."""

    to: OperationState
    action: Action
    deed: str
    without_ramp: bool = False

    @property
    def resumes(self) -> bool:
        """Tell whether a paused operation goes on."""
        return self.to is OperationState.QUEUED


PAUSE = ControlStep(OperationState.PAUSED, Action.OPERATION_PAUSED, "paused")
RESUME = ControlStep(OperationState.QUEUED, Action.OPERATION_RESUMED, "resumed")
RESUME_WITHOUT_RAMP = replace(RESUME, without_ramp=True)
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
    if _is_done_already(step, operation):
        return operation
    if step.resumes and operation.state == OperationState.CANCELLING:
        raise Refused("It is being cancelled, and cannot be resumed.")
    this = Operation.objects.filter(pk=operation.pk)
    columns, detail = _ramp_after(step, operation)
    if step.resumes:
        columns |= pace_from_here(operation, now=now)
    # It is tried at once, also while it waits for a broker that is away.
    columns |= {"retry_at": None, "trouble": "", "troubles": 0, "paused_because": ""}
    if not this.transition(to=step.to, **columns):
        raise Refused(f"It is {operation.state}, and cannot be {step.deed}.")
    _record(step.action, operation, reason, principal, now=now, detail=detail)
    operation.refresh_from_db()
    return operation


def _ramp_after(
    step: ControlStep, operation: Operation
) -> tuple[dict[str, Any], dict[str, object]]:
    """Return what a step changes of an operation's ramp: columns, and for the audit."""
    if operation.ramp and step.without_ramp:
        return {"ramp": None}, {"ramp": "removed"}
    if operation.ramp and step.resumes and operation.paused_because:
        return first_step_again(operation), {"ramp": "begins again"}
    return {}, {}


def _is_done_already(step: ControlStep, operation: Operation) -> bool:
    """Tell whether an operation is in the state to which a step leads, or beyond it.

    Raises Refused for one that goes on with the ramp that the step would remove.
    """
    goes_on = operation.state in {OperationState.QUEUED, OperationState.RUNNING}
    if not (step.resumes and goes_on):
        return operation.state == step.to
    if step.without_ramp and operation.ramp:
        raise Refused("It goes on with its ramp. Pause it, and resume it without.")
    return True


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
        before = operation.rate
        pace = pace_from_here(operation, now=now)
        Operation.objects.filter(pk=operation.pk).update(rate=rate, **pace)
        operation.refresh_from_db()
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
