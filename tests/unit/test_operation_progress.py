"""The pace of an operation, the same for pages and the API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from apps.triage.models import Operation
from apps.triage.operation_states import STANDINGS, OperationState
from apps.triage.progress import ItemTally, Pace, pace_of

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def tally(**counts: int) -> ItemTally:
    every = {**dict.fromkeys(STANDINGS, 0), **counts}
    return ItemTally(total=sum(counts.values()), counts=every)


def operation(
    state: OperationState = OperationState.RUNNING, **values: Any
) -> Operation:
    return Operation(state=state.value, **{"confirmed_at": NOON, **values})


def test_the_rest_takes_as_long_as_the_rate_so_far_predicts() -> None:
    items = tally(sent=20, waiting=60, skipped=5)

    pace = pace_of(operation(), items, now=NOON + timedelta(seconds=10))

    assert pace == Pace(rate=2.0, remaining=timedelta(seconds=30))


def test_an_operation_that_ended_has_a_rate_and_nothing_left() -> None:
    done = operation(OperationState.DONE, finished_at=NOON + timedelta(seconds=10))

    pace = pace_of(done, tally(sent=20), now=NOON + timedelta(days=1))

    assert pace == Pace(rate=2.0, remaining=None)


@pytest.mark.parametrize("state", [OperationState.PAUSED, OperationState.CANCELLING])
def test_what_does_not_go_on_has_no_time_left(state: OperationState) -> None:
    items = tally(sent=20, waiting=60)

    pace = pace_of(operation(state), items, now=NOON + timedelta(seconds=10))

    assert pace == Pace(rate=2.0, remaining=None)


def test_the_rest_takes_as_long_as_the_speed_since_the_last_change_predicts() -> None:
    items = tally(sent=20, waiting=60)
    # It was paused for most of the hour.
    resumed = operation(
        pace_since=NOON + timedelta(hours=1), pace_since_finished=10, rate=100
    )

    pace = pace_of(resumed, items, now=NOON + timedelta(hours=1, seconds=2))

    assert pace.remaining == timedelta(seconds=12)


@pytest.mark.parametrize("finished_by_then", [10, 20], ids=["faster", "unknown"])
def test_the_rest_takes_as_long_as_the_limit_in_force_predicts(
    finished_by_then: int,
) -> None:
    items = tally(sent=20, waiting=60)
    slowed = operation(
        pace_since=NOON + timedelta(hours=1),
        pace_since_finished=finished_by_then,
        rate=5,
    )

    pace = pace_of(slowed, items, now=NOON + timedelta(hours=1, seconds=1))

    assert pace.remaining == timedelta(seconds=12)


def test_the_rate_so_far_is_that_of_the_whole_time() -> None:
    resumed = operation(pace_since=NOON + timedelta(seconds=9), pace_since_finished=19)

    pace = pace_of(resumed, tally(sent=20), now=NOON + timedelta(seconds=10))

    assert pace.rate == 2.0


@pytest.mark.parametrize(
    "waits", [{"ramp": {"steps": [1]}}, {"trouble": "the broker is away"}], ids=str
)
def test_nothing_is_predicted_while_it_waits_for_a_broker_or_has_a_ramp(
    waits: dict[str, Any],
) -> None:
    items = tally(sent=20, waiting=60)

    pace = pace_of(operation(**waits), items, now=NOON + timedelta(seconds=10))

    assert pace == Pace(rate=2.0, remaining=None)


@pytest.mark.parametrize(
    ("items", "seconds"), [(tally(waiting=3), 10), (tally(sent=3), 0)]
)
def test_a_pace_is_unknown_before_anything_is_done(
    items: ItemTally, seconds: int
) -> None:
    assert pace_of(operation(), items, now=NOON + timedelta(seconds=seconds)) == Pace()


def test_a_rest_of_more_than_a_year_is_not_predicted() -> None:
    items = tally(sent=1, waiting=1_000_000)

    assert pace_of(operation(), items, now=NOON + timedelta(hours=1)).remaining is None
