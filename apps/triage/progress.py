"""Compute an operation's progress, the same for pages, API and command line."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from apps.core.errors import Absent
from apps.poison.models import ItemWindow
from apps.poison.states import RedriveOutcome
from apps.team.rights import Principal
from apps.triage.models import Operation
from apps.triage.operation_states import ItemState, OperationState

# An item in one of these standings still needs work.
PENDING = (ItemState.WAITING, RedriveOutcome.SENDING, RedriveOutcome.UNKNOWN)
# A person has to look at an item in one of these.
TROUBLED = (RedriveOutcome.REFUSED, RedriveOutcome.RECURRED, RedriveOutcome.UNKNOWN)
LONGEST_ESTIMATE = timedelta(days=365)


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemTally:
    """The items of an operation; `counts` are by standing and add up to `total`."""

    total: int
    counts: Mapping[str, int]

    @property
    def skipped(self) -> int:
        """Count the skipped items: they are no work, so no progress either."""
        return self.counts[ItemState.SKIPPED]

    @property
    def refused(self) -> int:
        """Count the items that a broker refused."""
        return self.counts[RedriveOutcome.REFUSED]

    @property
    def recurred(self) -> int:
        """Count the items whose message has failed once more."""
        return self.counts[RedriveOutcome.RECURRED]

    @property
    def troubled(self) -> int:
        """Count the items that were refused, came back or are unknown."""
        return sum(self.counts[standing] for standing in TROUBLED)

    @property
    def acts_on(self) -> int:
        """Count the items that the operation acts on: all but the skipped ones."""
        return self.total - self.skipped

    @property
    def finished(self) -> int:
        """Count the items that need no more work: done, or refused for good."""
        return self.acts_on - sum(self.counts[standing] for standing in PENDING)

    @property
    def acted(self) -> int:
        """Count an operation's items that were sent, given back, dropped and so on."""
        return self.finished - self.refused


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How fast an operation is, in items a second so far, and the time that it needs.

    Each is None while it is unknown. `remaining` is also None unless the operation goes
    on, while it waits for a broker, and with a ramp, whose waits may end at any time.
    """

    rate: float | None = None
    remaining: timedelta | None = None


def pace_of(operation: Operation, tally: ItemTally, *, now: datetime) -> Pace:
    """Return how fast an operation works, and the time it still needs.

    Its speed since it last began to go on, or its limit changed, predicts that: the
    rate so far counts pauses, too, and what another limit allowed.
    """
    began, ended = operation.confirmed_at, operation.finished_at or now
    rate = _speed(tally.finished, began, ended)
    if rate is None or not _is_predictable(operation):
        return Pace(rate=rate)
    since = operation.pace_since or began
    speed = _speed(tally.finished - operation.pace_since_finished, since, now)
    speeds = [each for each in (speed, operation.rate) if each]
    if not speeds:
        return Pace(rate=rate)
    remaining = timedelta(seconds=(tally.acts_on - tally.finished) / min(speeds))
    return Pace(
        rate=rate, remaining=remaining if remaining < LONGEST_ESTIMATE else None
    )


def _speed(finished: int, began: datetime | None, ended: datetime) -> float | None:
    """Return items a second, or None before any was finished."""
    seconds = (ended - began).total_seconds() if began else 0.0
    return finished / seconds if finished > 0 and seconds > 0 else None


def _is_predictable(operation: Operation) -> bool:
    goes_on = operation.state in {OperationState.QUEUED, OperationState.RUNNING}
    return goes_on and operation.ramp is None and not operation.trouble


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationProgress:
    """How far an operation has come; `silent` counts items without an answer.

    They were sent, or may have been.
    """

    operation: Operation
    tally: ItemTally
    silent: int
    pace: Pace
    eta: datetime | None


def counts_of(operation: Operation) -> dict[str, int]:
    """Count the items of an operation by standing; they add up to the total."""
    return all_counts([operation])[operation.pk]


def all_counts(operations: Collection[Operation]) -> dict[int, dict[str, int]]:
    """Count the items of each operation by standing, in one query."""
    counted = ItemWindow.objects.counts_of(operation.pk for operation in operations)
    return {
        operation.pk: {
            ItemState.WAITING.value: operation.total
            - sum(counted[operation.pk].values()),
            **counted[operation.pk],
        }
        for operation in operations
    }


def pace_from_here(operation: Operation, *, now: datetime) -> dict[str, Any]:
    """Return the columns by which an operation's speed is measured from now on."""
    tally = ItemTally(total=operation.total, counts=counts_of(operation))
    return {"pace_since": now, "pace_since_finished": tally.finished}


def silent_number(operation: Operation, *, now: datetime) -> int:
    """Count the items of an operation of which no answer came for too long."""
    windows = ItemWindow.objects.filter(operation=operation.pk)
    return windows.silent(now, is_over=operation.is_long_over(now))


def progress_of(
    *, operation_id: int, principal: Principal, now: datetime
) -> OperationProgress:
    """Count the items of a confirmed operation; raises Absent if it is not visible."""
    visible = Operation.objects.visible_to(principal).select_related(
        "target_topic", "acknowledgement"
    )
    operation = visible.filter(pk=operation_id).first()
    if operation is None:
        raise Absent(f"There is no operation {operation_id} here.")
    tally = ItemTally(total=operation.total, counts=counts_of(operation))
    pace = pace_of(operation, tally, now=now)
    return OperationProgress(
        operation=operation,
        tally=tally,
        silent=silent_number(operation, now=now),
        pace=pace,
        eta=None if pace.remaining is None else now + pace.remaining,
    )
