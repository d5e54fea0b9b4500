"""A ramp lets an operation send in growing steps, and pauses it when consumers fail."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from redis import Redis

from apps.audit.models import Entry
from apps.brokers.adapter_contract import OutcomeKind, PublishOutcome
from apps.brokers.models import Topic
from apps.brokers.services.topics_and_routing_publisher import (
    RoutedMessage,
    RoutingPublisher,
)
from apps.core.errors import Refused
from apps.poison.models import Hold
from apps.poison.services import redrive_confirmations_by_token
from apps.team.rights import Principal
from apps.triage.models import Operation
from apps.triage.ramps import Ramp
from apps.triage.services import running
from apps.triage.services.control import (
    CANCEL,
    PAUSE,
    RESUME,
    RESUME_WITHOUT_RAMP,
    ControlStep,
)
from apps.triage.services.running import SliceEnd
from tests.failure_report_builders import poisons
from tests.triage_operation_runner import (
    MINUTE,
    answer,
    change,
    confirm,
    counts_of,
    preview,
    run,
    sent_messages,
)

pytestmark = pytest.mark.django_db(transaction=True)

RAMP = Ramp(steps=(1, 2), confirmed=100, came_back=10, wait=60)


def lengths_after_runs(operation: Operation, stream: Redis, now: datetime) -> list[int]:
    """Run eight times and return the stream's lengths; answer after every other run."""
    lengths = []
    for round_number in range(8):
        run(operation, now + timedelta(seconds=round_number))
        lengths.append(stream.xlen("orders"))
        if round_number % 2:
            answer(stream, now)
    return lengths


def answer_two_steps(
    operation: Operation, stream: Redis, now: datetime, *, failing: int
) -> None:
    """Confirm one step, and let the message at `failing` fail in the next."""
    run(operation, now)
    answer(stream, now)
    run(operation, now)
    answer(stream, now, failing=[failing])


def test_a_ramp_sends_the_next_step_only_when_the_last_one_was_confirmed(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 20)
    operation = confirm(operator, preview(operator, now, ramp=RAMP), now)

    assert lengths_after_runs(operation, stream, now) == [1, 1, 3, 3, 13, 13, 20, 20]
    assert counts_of(operation) == {"confirmed": 20}


def test_a_ramp_pauses_when_messages_come_back_and_says_why(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 20)
    operation = confirm(operator, preview(operator, now, ramp=RAMP), now)
    answer_two_steps(operation, stream, now, failing=1)

    ended = run(operation, now)
    operation.refresh_from_db()

    assert ended is SliceEnd.LATER
    assert operation.state == "paused"
    assert operation.paused_because == "1 of 3 came back, more than 10 %"
    assert counts_of(operation) == {"confirmed": 2, "recurred": 1, "waiting": 17}
    entry = Entry.objects.get(action="operation.paused")
    assert entry.detail["because"] == operation.paused_because


def test_a_ramp_pauses_when_too_few_are_confirmed_in_time(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 3)
    operation = confirm(operator, preview(operator, now, ramp=RAMP), now)
    run(operation, now)

    run(operation, now)
    operation.refresh_from_db()
    waits = operation.trouble
    run(operation, now + 2 * MINUTE)
    operation.refresh_from_db()

    assert waits == "The ramp waits for 100 % of 1 to be confirmed."
    assert operation.state == "paused"
    assert operation.paused_because == (
        "0 of 1 were confirmed within 60 s, less than 100 %"
    )


def test_a_ramp_without_confirmations_goes_on_when_nothing_came_back_for_a_time(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 3)
    quiet = Ramp(steps=(1, 5), confirmed=None, came_back=0, wait=60)
    operation = confirm(operator, preview(operator, now, ramp=quiet), now)

    run(operation, now)
    run(operation, now)
    early = stream.xlen("orders")
    run(operation, now + 2 * MINUTE)

    assert (early, stream.xlen("orders")) == (1, 3)


def paused_by_its_ramp(
    operator: Principal, stream: Redis, now: datetime, *, window_size: int = 500
) -> Operation:
    """Let a ramp of 20 messages send 1, then 2, of which one comes back."""
    poisons(now, 20)
    previewed = preview(operator, now, ramp=RAMP)
    Operation.objects.filter(pk=previewed.pk).update(window_size=window_size)
    operation = confirm(operator, previewed, now)
    answer_two_steps(operation, stream, now, failing=1)
    run(operation, now)
    operation.refresh_from_db()
    assert operation.paused_because == "1 of 3 came back, more than 10 %"
    return operation


@pytest.mark.parametrize("window_size", [500, 3, 2, 1])
def test_a_ramp_that_is_resumed_begins_with_its_first_step_again(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    window_size: int,
) -> None:
    operation = paused_by_its_ramp(operator, stream, now, window_size=window_size)

    change(RESUME, operation, operator, now)

    assert lengths_after_runs(operation, stream, now) == [4, 4, 6, 6, 16, 16, 20, 20]
    assert counts_of(operation) == {"confirmed": 19, "recurred": 1}
    entry = Entry.objects.get(action="operation.resumed")
    assert entry.detail["ramp"] == "begins again"


@pytest.mark.parametrize("window_size", [500, 2])
def test_a_resumed_ramp_pauses_by_what_was_sent_since_then(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    window_size: int,
) -> None:
    operation = paused_by_its_ramp(operator, stream, now, window_size=window_size)
    change(RESUME, operation, operator, now)
    answer_two_steps(operation, stream, now, failing=5)

    run(operation, now)
    operation.refresh_from_db()

    assert operation.paused_because == "1 of 3 came back, more than 10 %"
    assert counts_of(operation) == {"confirmed": 4, "recurred": 2, "waiting": 14}


def test_late_answers_to_what_was_sent_before_do_not_let_a_resumed_ramp_go_further(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 20)
    operation = confirm(operator, preview(operator, now, ramp=RAMP), now)
    run(operation, now)
    run(operation, now)
    run(operation, now + 2 * MINUTE)
    later = now + 3 * MINUTE
    change(RESUME, operation, operator, later)
    tokens = [fields[b"x-poisonweb-redrive"] for fields in sent_messages(stream)]

    run(operation, later)
    redrive_confirmations_by_token.confirm(
        tokens=[(token.decode(), "orders") for token in tokens], now=later
    )
    run(operation, later)
    operation.refresh_from_db()

    assert (stream.xlen("orders"), operation.state) == (2, "running")
    assert operation.trouble == "The ramp waits for 100 % of 1 to be confirmed."


class HalfAwayPublisher(RoutingPublisher):
    """Hands the first message over; its broker is away for all others."""

    others = OutcomeKind.UNSENT

    def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
        away = PublishOutcome(kind=self.others, detail="away")
        return [*super().publish(messages[:1]), *[away] * (len(messages) - 1)]


class HalfUnknownPublisher(HalfAwayPublisher):
    """Hands the first message over; whether the broker got the others is unknown."""

    others = OutcomeKind.UNKNOWN


@pytest.mark.parametrize("failing", [[], [4]], ids=["handled", "failing"])
@pytest.mark.parametrize("publisher", [HalfAwayPublisher, HalfUnknownPublisher])
def test_a_resumed_ramp_counts_what_no_broker_had_got_before(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    publisher: type[RoutingPublisher],
    failing: list[int],
) -> None:
    poisons(now, 40)
    operation = confirm(operator, preview(operator, now, ramp=RAMP), now)
    run(operation, now)
    answer(stream, now)
    run(operation, now, by=publisher)
    answer(stream, now, failing=[1])
    run(operation, now)
    assert (stream.xlen("orders"), Hold.objects.count()) == (2, 38)
    change(RESUME, operation, operator, now)

    lengths = []
    for _ in range(4):
        run(operation, now)
        lengths.append(stream.xlen("orders"))
        answer(stream, now, failing=failing)

    operation.refresh_from_db()
    if failing:
        assert lengths == [3, 5, 5, 5]
        assert operation.paused_because == "1 of 3 came back, more than 10 %"
    else:
        assert (lengths, operation.paused_because) == ([3, 5, 15, 40], "")


def test_a_person_may_resume_what_a_ramp_has_paused_without_the_ramp(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    operation = paused_by_its_ramp(operator, stream, now)

    change(RESUME_WITHOUT_RAMP, operation, operator, now)
    ended = run(operation, now)

    assert (ended, stream.xlen("orders")) == (SliceEnd.DONE, 20)
    assert Entry.objects.get(action="operation.resumed").detail["ramp"] == "removed"


def test_a_ramp_is_not_removed_from_an_operation_that_goes_on(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 5)
    operation = confirm(operator, preview(operator, now, ramp=RAMP), now)
    run(operation, now)

    with pytest.raises(Refused, match="goes on with its ramp. Pause it"):
        change(RESUME_WITHOUT_RAMP, operation, operator, now)

    operation.refresh_from_db()
    assert operation.ramp == RAMP.to_json()


@pytest.mark.parametrize("step", [PAUSE, CANCEL], ids=["paused", "cancelled"])
def test_a_ramp_pauses_nothing_that_a_person_has_just_stopped(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
    step: ControlStep,
) -> None:
    poisons(now, 5)
    operation = confirm(operator, preview(operator, now, ramp=RAMP), now)
    run(operation, now)
    answer(stream, now, failing=[0])

    def stop(operation: Operation, **_: object) -> bool:
        change(step, operation, operator, now)
        return False

    monkeypatch.setattr(running, "judge_next", stop)
    run(operation, now)
    operation.refresh_from_db()

    pauses = Entry.objects.filter(action="operation.paused", actor="system:worker")
    assert (operation.paused_because, stream.xlen("orders")) == ("", 1)
    assert not pauses.exists()
