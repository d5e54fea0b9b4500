"""Let an operation climb its ramp: allow the next step, wait, pause it, begin again."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Max

from apps.audit import services as audit
from apps.audit.services import Action
from apps.core.actor import Actor
from apps.poison.models import ItemWindow
from apps.triage.models import Operation
from apps.triage.operation_states import OperationState
from apps.triage.progress import counts_from, counts_of
from apps.triage.ramps import Ramp, RampCheck, check, handed_over_number
from apps.triage.services.fencing import fence


@transaction.atomic
def climb(operation: Operation, ramp: Ramp, *, now: datetime) -> RampCheck:
    """Check the ramp of a run's operation, and store what follows.

    Pauses the operation if its messages come back, or are not confirmed in time. One
    that a person has paused or cancelled gets no room, and stays as it is.
    """
    if not fence(operation=operation.pk, run=operation.run).may_go_on:
        return RampCheck()
    handed_over = handed_over_number(counts_of(operation)) - operation.ramp_begins_after
    result = check(
        ramp,
        counts_from(operation, first=operation.ramp_begins_at),
        handed_over=handed_over,
        ramp_to=operation.ramp_to,
        waits_since=operation.ramp_waits_since,
        now=now,
    )
    if result.pauses_because:
        _pause(operation, result.pauses_because, now=now)
    elif result.waits_for:
        operation.ramp_waits_since = operation.ramp_waits_since or now
    else:
        operation.ramp_to = handed_over + result.room
        operation.ramp_waits_since = None
    operation.save(update_fields=["ramp_to", "ramp_waits_since"])
    return result


def first_step_again(operation: Operation) -> dict[str, Any]:
    """Return the columns with which a paused operation begins its ramp once more.

    The steps count from here on, and only answers to what is sent from here on. What
    failed or was not confirmed before would pause the operation again at once.
    """
    windows = ItemWindow.objects.filter(operation=operation.pk)
    return {
        "ramp_begins_after": handed_over_number(counts_of(operation)),
        "ramp_begins_at": windows.aggregate(to=Max("sending_to"))["to"] or 0,
        "ramp_to": 0,
        "ramp_waits_since": None,
    }


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
