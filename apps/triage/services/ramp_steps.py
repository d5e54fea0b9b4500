"""Let an operation climb its ramp: allow the next step, wait, pause it, begin again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F, Max, Sum

from apps.audit import services as audit
from apps.audit.services import Action
from apps.core.actor import Actor
from apps.core.queryset_sql import read_by_index
from apps.poison.models import ItemWindow, Redrive
from apps.poison.states import COUNTED
from apps.triage.models import Item, Operation
from apps.triage.operation_states import OperationState
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
    counts = _counts_since_it_began(operation)
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
        operation.ramp_to = handed_over_number(counts) + result.room
        operation.ramp_waits_since = None
    operation.save(update_fields=["ramp_to", "ramp_waits_since"])
    return result


def first_step_again(operation: Operation) -> dict[str, Any]:
    """Return the columns with which a paused operation begins its ramp once more.

    The steps count from here on, and only answers to what is sent from here on. What
    failed or was not confirmed before would pause the operation again at once.
    """
    begun = ItemWindow.objects.filter(operation=operation.pk, sending_to__gt=0)
    end = begun.aggregate(end=Max(F("first") + F("items")))["end"]
    return {
        "ramp_begins_at": end or 0,
        "ramp_after_run": operation.run,
        "ramp_to": 0,
        "ramp_waits_since": None,
    }


def _counts_since_it_began(operation: Operation) -> Mapping[str, int]:
    """Count by standing the items that were sent since the ramp began, or began again.

    Windows that were begun before may hold messages of before, and others that no
    broker got, as it was away. A run claims few windows, so of those that later runs
    claimed again it looks at each redrive.
    """
    read_by_index()
    windows = ItemWindow.objects.filter(operation=operation.pk)
    whole = windows.filter(first__gte=operation.ramp_begins_at)
    counts = Counter(
        whole.aggregate(**{name: Sum(name, default=0) for name in COUNTED})
    )
    for window in windows.filter(
        first__lt=operation.ramp_begins_at, run__gt=operation.ramp_after_run
    ):
        counts.update(_outcomes_in(window, after_run=operation.ramp_after_run))
    return counts


def _outcomes_in(window: ItemWindow, *, after_run: int) -> list[str]:
    """List the outcomes of a window's messages that a run after this one sent."""
    items = Item.objects.filter(
        operation=window.operation,
        number__gte=window.first,
        number__lt=window.first + window.items,
    )
    redrives = Redrive.objects.filter(
        poison__in=list(items.values_list("poison", flat=True)),
        operation=window.operation,
        epoch__gt=after_run,
    )
    return list(redrives.values_list("outcome", flat=True))


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
