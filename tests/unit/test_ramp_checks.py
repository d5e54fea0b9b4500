"""What a ramp does after a step: it sends more, waits, or pauses and says why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from apps.poison.states import COUNTED
from apps.triage.ramps import Ramp, RampCheck, check

NOW = datetime(2026, 3, 4, 9, tzinfo=UTC)
CONFIRMED = Ramp(steps=(2, 8), confirmed=50, came_back=10, wait=60)
QUIET = Ramp(steps=(2, 8), confirmed=None, came_back=10, wait=60)


def checked(
    ramp: Ramp, *, after: int = 0, step: int | None = None, **counts: int
) -> RampCheck:
    """Check a ramp some seconds after all messages of a step were handed over."""
    all_counts = {**dict.fromkeys(COUNTED, 0), **counts}
    ramp_to = sum(counts.values()) if step is None else step
    since = NOW - timedelta(seconds=after)
    return check(
        ramp,
        all_counts,
        ramp_to=ramp_to,
        waits_since=since,
        now=NOW,
    )


def test_a_step_of_messages_of_their_own_topic_needs_confirmations_and_no_time() -> (
    None
):
    assert checked(CONFIRMED, sent=1, confirmed=1) == RampCheck(room=8)
    assert checked(CONFIRMED, sent=2) == RampCheck(
        waits_for="waits for 50 % of 2 to be confirmed"
    )
    assert checked(CONFIRMED, after=60, sent=2) == RampCheck(
        pauses_because="0 of 2 were confirmed within 60 s, less than 50 %"
    )


@pytest.mark.parametrize("ramp", [CONFIRMED, QUIET])
def test_moved_messages_wait_for_the_whole_time_as_they_are_not_confirmed(
    ramp: Ramp,
) -> None:
    waits = RampCheck(waits_for="waits 60 s for messages that come back")

    assert checked(ramp, after=59, moved=2) == waits
    assert checked(ramp, after=60, moved=2) == RampCheck(room=8)


def test_of_a_mixed_step_the_messages_of_their_own_topic_must_be_confirmed_too() -> (
    None
):
    assert checked(CONFIRMED, after=59, moved=6, sent=4).waits_for == (
        "waits for 50 % of 4 to be confirmed"
    )
    assert checked(CONFIRMED, after=60, moved=6, sent=4).pauses_because == (
        "0 of 4 were confirmed within 60 s, less than 50 %"
    )
    assert checked(CONFIRMED, after=59, moved=6, sent=2, confirmed=2).waits_for == (
        "waits 60 s for messages that come back"
    )
    assert checked(CONFIRMED, after=60, moved=6, sent=2, confirmed=2).room == 40


def test_what_came_back_is_a_share_of_the_moved_messages_too() -> None:
    assert not checked(QUIET, moved=9, recurred=1).pauses_because
    assert checked(QUIET, moved=8, recurred=2).pauses_because == (
        "2 of 10 came back, more than 10 %"
    )


@pytest.mark.parametrize("ramp", [CONFIRMED, QUIET])
def test_a_step_that_was_refused_as_a_whole_pauses_the_ramp(ramp: Ramp) -> None:
    assert checked(ramp, after=60, refused=2).pauses_because == "2 of 2 were refused"
    assert checked(ramp, after=60, confirmed=2, refused=8).pauses_because == (
        "8 of 10 were refused"
    )
    assert not checked(ramp, after=60, confirmed=6, refused=4).pauses_because
    # The step is not over yet.
    assert checked(ramp, step=10, confirmed=2, refused=3) == RampCheck(room=5)


def test_messages_without_any_answer_wait_for_the_whole_time() -> None:
    assert checked(CONFIRMED, after=59, unknown=2).waits_for
    assert checked(CONFIRMED, after=60, unknown=2) == RampCheck(room=8)


def test_the_first_step_has_no_condition() -> None:
    assert checked(CONFIRMED) == RampCheck(room=2)
