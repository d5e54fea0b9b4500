"""Let an operation climb its ramp: allow the next step, wait, or pause it."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from apps.audit import services as audit
from apps.audit.services import Action
from apps.core.actor import Actor
from apps.triage.models import Operation
from apps.triage.operation_states import OperationState
from apps.triage.progress import counts_of
from apps.triage.ramps import Ramp, RampCheck, check
from apps.triage.services.fencing import fence


@transaction.atomic
def climb(operation: Operation, ramp: Ramp, *, now: datetime) -> RampCheck:
    """Check the ramp of a run's operation, and store what follows.

    Pauses the operation if its messages come back, or are not confirmed in time. One
    that a person has paused or cancelled gets no room, and stays as it is.
    """
    if not fence(operation=operation.pk, run=operation.run).may_go_on:
        return RampCheck()
    counts = counts_of(operation)
    result = check(
        ramp,
        counts,
        ramp_to=operation.ramp_to,
        waits_since=operation.ramp_waits_since,
        now=now,
    )
    if result.pauses_because:
        _pause(operation, result.pauses_because, now=now)
    elif result.waits_for:
        operation.ramp_waits_since = operation.ramp_waits_since or now
    else:
        handed_over = operation.total - counts["waiting"] - counts["skipped"]
        operation.ramp_to = handed_over + result.room
        operation.ramp_waits_since = None
    operation.save(update_fields=["ramp_to", "ramp_waits_since"])
    return result


def _pause(operation: Operation, why: str, *, now: datetime) -> None:
    """Pause the operation at its ramp, and audit why; a fence keeps it running."""
    Operation.objects.filter(pk=operation.pk).transition(
        to=OperationState.PAUSED, paused_because=why
    )
    audit.record(
        action=Action.OPERATION_PAUSED,
        subject=f"operation:{operation.pk}",
        actor=Actor.system("worker"),
        now=now,
        detail={"verb": operation.verb, "for": operation.actor, "because": why},
    )
