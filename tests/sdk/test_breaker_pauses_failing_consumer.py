from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from poisonguard.errors import Misconfigured
from poisonguard.handling.circuit_breaker import (
    Admission,
    Breaker,
    BreakerPolicy,
    BreakerState,
)


class BreakerWithClock:
    """A breaker with a clock and a count that a test moves."""

    def __init__(self, policy: BreakerPolicy | None) -> None:
        self.now = 1_000.0
        self.handled = 0
        self.today = datetime(2026, 11, 20, 12, tzinfo=UTC)
        self.breaker = Breaker(
            policy,
            handled=lambda: self.handled,
            clock=lambda: self.now,
            dates=lambda: self.today,
        )

    def fail(self, times: int) -> list[bool]:
        return [self.breaker.count_failure() for _ in range(times)]


@pytest.mark.parametrize(
    "setting",
    [
        *({"in_a_row": 0}, {"at_least": 0}, {"of_last": 99}),
        *({"share": 0}, {"share": 1.1}, {"pause": 0}),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match="give"):
        BreakerPolicy(**setting)


def test_opens_with_the_fiftieth_message_that_fails_in_a_row() -> None:
    scene = BreakerWithClock(BreakerPolicy())

    opened = scene.fail(50)

    assert opened == [False] * 49 + [True]
    assert scene.breaker.reason == "50 messages failed in a row"


def test_one_handled_message_restarts_the_count_in_a_row() -> None:
    scene = BreakerWithClock(BreakerPolicy(in_a_row=3))

    before = scene.fail(2)
    scene.handled += 1
    row, after = scene.breaker.in_a_row, scene.fail(3)

    assert (before, row, after) == ([False, False], 0, [False, False, True])


def test_opens_when_more_than_a_fifth_failed_however_long_it_took() -> None:
    scene = BreakerWithClock(BreakerPolicy())

    opened = []
    for _ in range(30):
        scene.handled += 4
        scene.now += 3_600
        opened += scene.fail(1)  # a fifth, never more
    opened += scene.fail(1)

    assert opened == [False] * 30 + [True]
    assert scene.breaker.reason == "31 of the last 151 messages failed"


def test_only_the_last_messages_count() -> None:
    scene = BreakerWithClock(BreakerPolicy(of_last=200))
    scene.handled = 10_000

    failed = 0
    while not scene.breaker.count_failure():
        failed += 1
        scene.handled += 2

    assert failed == 40
    assert scene.breaker.reason == "41 of the last 200 messages failed"


def test_a_share_of_few_messages_does_not_open() -> None:
    scene = BreakerWithClock(BreakerPolicy())
    scene.handled = 68

    assert not any(scene.fail(31))


def test_what_failed_before_the_last_messages_is_forgotten() -> None:
    scene = BreakerWithClock(BreakerPolicy(of_last=100))
    scene.handled = 80
    scene.fail(20)

    scene.handled += 80
    opened = scene.fail(1)

    assert opened == [False]
    assert scene.breaker.state is BreakerState.CLOSED


def test_what_was_in_flight_when_it_opened_does_not_lengthen_the_pause() -> None:
    scene = BreakerWithClock(BreakerPolicy(in_a_row=1, pause=30))
    scene.fail(1)

    scene.now += 10
    opened = scene.fail(13)
    turn = scene.breaker.admit()

    assert opened == [True] * 13
    assert turn == Admission(wait=20)


def test_after_the_pause_one_message_is_tried_and_the_others_wait() -> None:
    scene = BreakerWithClock(BreakerPolicy(in_a_row=1, pause=30))
    scene.fail(1)

    paused = scene.breaker.admit()
    scene.now += 30
    turns = [scene.breaker.admit() for _ in "ab"]

    assert paused == Admission(wait=30)
    assert turns == [Admission(is_probe=True), Admission(wait=0.1)]


def test_closes_when_the_probe_was_handled_and_forgets() -> None:
    scene = BreakerWithClock(BreakerPolicy(in_a_row=2, pause=30))
    scene.fail(2)
    scene.now += 30
    scene.breaker.admit()

    scene.breaker.probed(handled=True)

    assert scene.breaker.state is BreakerState.CLOSED
    assert scene.breaker.admit() == Admission()
    assert scene.fail(1) == [False]


def test_each_failed_probe_doubles_the_pause_up_to_five_minutes() -> None:
    scene = BreakerWithClock(BreakerPolicy(in_a_row=1, pause=100))
    scene.fail(1)

    pauses = []
    for _ in range(4):
        pauses.append(scene.breaker.admit().wait)
        scene.now += pauses[-1]
        assert scene.breaker.admit().is_probe
        scene.breaker.probed(handled=False)

    assert pauses == [100, 200, 300, 300]


def test_after_a_probe_that_did_not_run_the_next_message_probes() -> None:
    scene = BreakerWithClock(BreakerPolicy(in_a_row=1, pause=30))
    scene.fail(1)
    scene.now += 30
    scene.breaker.admit()

    scene.breaker.probed(handled=None)

    assert scene.breaker.admit().is_probe


def test_without_a_policy_it_counts_and_never_opens() -> None:
    scene = BreakerWithClock(None)

    opened = scene.fail(500)

    assert not any(opened)
    assert scene.breaker.in_a_row == 500


@pytest.mark.parametrize("set_by", [timedelta(hours=-9), timedelta(days=40)])
def test_failing_since_is_the_earliest_failure_when_the_clock_is_set_back(
    set_by: timedelta,
) -> None:
    scene = BreakerWithClock(BreakerPolicy(in_a_row=4))
    dates = [scene.today]
    scene.fail(2)
    closed = scene.breaker.failing_since
    scene.today += set_by
    dates.append(scene.today)
    scene.fail(2)

    assert closed is None
    assert scene.breaker.failing_since == min(dates)
