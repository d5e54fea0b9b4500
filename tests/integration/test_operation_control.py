"""Operations are paused, resumed, cancelled and slowed while they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from threading import Event
from typing import Any

import pytest
from django.db import OperationalError, connection
from redis import Redis

from apps.audit.models import Entry
from apps.brokers.adapter_contract import OutcomeKind, PublishOutcome
from apps.brokers.models import Broker, Topic
from apps.brokers.services.topics_and_routing_publisher import (
    RoutedMessage,
    RoutingPublisher,
)
from apps.core.errors import Absent, Forbidden, Invalid, Refused
from apps.poison.models import Hold, Poison, Redrive
from apps.poison.services import redrive_confirmations_by_token
from apps.team.rights import GRANTS, Principal, Role
from apps.triage.item_standings import standings_of
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from apps.triage.ramps import Ramp
from apps.triage.services import (
    control,
    orphaned_operations_and_expired_rows,
    preview_summaries,
    redrive_message_building,
    running,
)
from apps.triage.services.confirm_and_undo import JUDGED_AT_ONCE
from apps.triage.services.control import (
    CANCEL,
    PAUSE,
    RESUME,
    ControlStep,
    OperationOver,
)
from apps.triage.services.pacing import Pacer
from apps.triage.services.redrive_message_building import ReadItems
from apps.triage.services.running import SliceEnd
from tests.failure_report_builders import poisons
from tests.triage_operation_runner import (
    MINUTE,
    AwayPublisher,
    answer,
    change,
    confirm,
    counts_of,
    preview,
    run,
    sent_messages,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class PacerClock:
    """A time that passes only while a run waits for its rate."""

    def __init__(self) -> None:
        self.sleeps: list[float] = []

    def timer(self) -> float:
        return sum(self.sleeps)

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)


def cancel_to_its_end(operation: Operation, who: Principal, now: datetime) -> None:
    """Cancel an operation, as its broker hangs, and wait until it is over."""
    change(CANCEL, operation, who, now)
    wait_until(Operation.objects.filter(pk=operation.pk, state="cancelled").exists)


def publisher_that(
    does: Callable[[], object], *, outcome: OutcomeKind | None = None
) -> type[RoutingPublisher]:
    """Make a publisher that does something before each call that has messages."""

    class Interrupted(RoutingPublisher):
        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            if messages:
                does()
            if outcome is not None:
                return [PublishOutcome(kind=outcome, detail="away")] * len(messages)
            return super().publish(messages)

    return Interrupted


def test_a_run_reads_the_next_messages_by_its_own_session_while_it_publishes(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 6)
    operation = confirm(operator, preview(operator, now), now)
    sessions = set()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (start,) = cursor.fetchone()

    def count_sessions() -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE backend_start > %s"
                " AND datname = current_database() AND backend_type LIKE 'client%%'",
                [start],
            )
            sessions.update(cursor.fetchone())

    run(operation, now, by=publisher_that(count_sessions), most=2)

    assert counts_of(operation) == {"sent": 6}
    # That of its lock, and the one in which this test counts; its own was there.
    assert sessions == {2}


def test_answers_are_recorded_although_the_session_of_the_run_has_ended(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    poisons(now, 6)
    operation = confirm(operator, preview(operator, now), now)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (session,) = cursor.fetchone()
    ended, reads, read = Event(), count(), redrive_message_building.read

    def end_session() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 60000)", [session])
        ended.set()

    def read_after_the_end(**values: Any) -> ReadItems:
        is_second = next(reads) == 1
        assert not is_second or ended.wait(60)
        return read(**values)

    monkeypatch.setattr(redrive_message_building, "read", read_after_the_end)
    with pytest.raises(OperationalError):
        run(operation, now, by=publisher_that(end_session), most=2)
    recorded = counts_of(operation)
    run(operation, now + MINUTE)

    assert recorded == {"sent": 2, "waiting": 4}
    assert counts_of(operation) == {"sent": 6}
    assert len(sent_messages(stream)) == 6


def test_a_paused_operation_sends_the_claim_in_hand_and_no_more(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 6)
    operation = confirm(operator, preview(operator, now), now)

    ended = run(
        operation,
        now,
        by=publisher_that(partial(change, PAUSE, operation, operator, now)),
        most=2,
    )
    paused = counts_of(operation)
    due = orphaned_operations_and_expired_rows.orphans(now=now + MINUTE).to_run
    change(RESUME, operation, operator, now)
    finished = run(operation, now, most=2)

    assert (ended, paused) == (SliceEnd.LATER, {"sent": 2, "waiting": 4})
    assert operation.pk not in due
    assert (finished, counts_of(operation)) == (SliceEnd.DONE, {"sent": 6})
    assert stream.xlen("orders") == 6


@pytest.mark.parametrize("steps", [[PAUSE], [PAUSE, RESUME]], ids=["paused", "resumed"])
def test_an_operation_that_is_paused_during_its_last_claim_ends_once(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    steps: Sequence[ControlStep],
) -> None:
    poisons(now, 2)
    operation = confirm(operator, preview(operator, now), now)

    def interrupt() -> None:
        for step in steps:
            change(step, operation, operator, now)

    ended = run(operation, now, by=publisher_that(interrupt))
    run(operation, now)

    operation.refresh_from_db()
    ends = Entry.objects.filter(action="operation.finished")
    assert (ended, operation.state, ends.count()) == (SliceEnd.DONE, "done", 1)


def test_what_a_paused_operation_may_still_send_is_free_for_no_other(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 2)
    operation = confirm(operator, preview(operator, now), now)
    run(
        operation,
        now,
        by=publisher_that(partial(change, PAUSE, operation, operator, now)),
        most=1,
    )

    other = preview_summaries.summarize(operation=preview(operator, now))

    assert other.will_act == 0
    assert (f"operation {operation.pk} has it", 1) in other.skipped


def test_a_cancelled_operation_leaves_what_was_not_handed_over_open_and_free(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a busy machine, too, this broker answers before the cancel stops to wait.
    monkeypatch.setattr(running, "CANCEL_WAITS", 60.0)
    poisons(now, 6)
    operation = confirm(operator, preview(operator, now), now)

    ended = run(
        operation,
        now,
        by=publisher_that(partial(change, CANCEL, operation, operator, now)),
        most=2,
    )
    operation.refresh_from_db()

    assert (ended, operation.state) == (SliceEnd.DONE, "cancelled")
    assert operation.finished_at == now
    assert counts_of(operation) == {"sent": 2, "waiting": 4}
    assert not Hold.objects.exists()
    assert Poison.objects.filter(state="open").count() == 4
    assert preview_summaries.summarize(operation=preview(operator, now)).will_act == 4
    assert stream.xlen("orders") == 2


def test_a_cancel_with_the_broker_away_ends_at_once(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 3)
    operation = confirm(operator, preview(operator, now), now)
    Broker.objects.update(url="redis://127.0.0.1:1/0")
    waiting = run(operation, now)
    waits = (
        operation.pk not in orphaned_operations_and_expired_rows.orphans(now=now).to_run
    )

    change(CANCEL, operation, operator, now)
    due = operation.pk in orphaned_operations_and_expired_rows.orphans(now=now).to_run
    ended = run(operation, now)
    operation.refresh_from_db()

    assert (waiting, waits, due) == (SliceEnd.LATER, True, True)
    assert (ended, operation.state) == (SliceEnd.DONE, "cancelled")
    assert counts_of(operation) == {"waiting": 3}
    assert not Hold.objects.exists()


def test_a_run_makes_way_for_the_cancel_of_an_operation_that_no_process_runs(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    first, *others = (poison.pk for poison in poisons(now, 61))
    away = confirm(operator, preview(operator, now, ids=[first]), now)
    run(away, now, by=AwayPublisher)
    busy = confirm(operator, preview(operator, now, ids=others), now)
    # A tenth of a second at each look at it.
    ticks = (now + number * timedelta(seconds=0.1) for number in count())

    undisturbed = run(busy, ticks, most=1)
    sent_before = counts_of(busy)["sent"]
    change(CANCEL, away, operator, now)
    disturbed = run(busy, ticks, most=1)
    sent_after = counts_of(busy)["sent"] - sent_before

    # A slice is ten seconds; this one ends at its first look, but not without progress.
    assert (undisturbed, disturbed) == (SliceEnd.AGAIN, SliceEnd.AGAIN)
    assert 0 < sent_after < sent_before / 5
    assert run(away, now) is SliceEnd.DONE
    assert away.pk not in orphaned_operations_and_expired_rows.orphans(now=now).to_run


@pytest.mark.parametrize(
    ("outcome", "standing"),
    [(None, "sent"), (OutcomeKind.UNKNOWN, "unknown")],
)
def test_a_cancel_does_not_wait_for_a_broker_that_does_not_answer(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    outcome: OutcomeKind | None,
    standing: str,
) -> None:
    poisons(now, 6)
    operation = confirm(operator, preview(operator, now), now)
    counts = []

    def cancel_and_wait() -> None:
        cancel_to_its_end(operation, operator, now)
        counts.append(counts_of(operation))

    ended = run(
        operation, now, by=publisher_that(cancel_and_wait, outcome=outcome), most=2
    )

    assert ended is SliceEnd.DONE
    assert counts == [{"unknown": 2, "waiting": 4}]
    assert counts_of(operation) == {standing: 2, "waiting": 4}
    assert not Hold.objects.exists()
    assert Poison.objects.filter(state="open", redrives=0).count() == 4
    assert Poison.objects.filter(state="redriven", redrives=1).count() == 2
    assert set(Redrive.objects.values_list("copies", flat=True)) == {1}
    ends = Entry.objects.filter(
        action__in=["operation.cancelled", "operation.finished"]
    )
    assert [entry.action for entry in ends] == ["operation.cancelled"]


@pytest.mark.parametrize(
    ("ordered", "outcome", "counts"),
    [
        (False, OutcomeKind.UNSENT, {"waiting": 3}),
        # The other two of their topic were not handed to the broker.
        (True, OutcomeKind.UNKNOWN, {"unknown": 1, "waiting": 2}),
    ],
    ids=["unordered", "ordered"],
)
def test_what_reached_no_broker_is_open_again_although_the_answer_came_after_a_cancel(
    orders: Topic,
    operator: Principal,
    now: datetime,
    ordered: bool,
    outcome: OutcomeKind,
    counts: dict[str, int],
) -> None:
    poisons(now, 3)
    operation = confirm(operator, preview(operator, now, ordered=ordered), now)
    cancel = partial(cancel_to_its_end, operation, operator, now)

    ended = run(operation, now, by=publisher_that(cancel, outcome=outcome))

    unsent = Poison.objects.filter(state="open", redrives=0, sent_at=None)
    assert ended is SliceEnd.DONE
    assert counts_of(operation) == counts
    assert unsent.count() == counts["waiting"]
    assert Redrive.objects.count() == counts.get("unknown", 0)
    assert not Hold.objects.exists()
    another = preview_summaries.summarize(operation=preview(operator, now))
    assert another.will_act == counts["waiting"]


def test_a_second_send_that_reached_no_broker_leaves_the_first_as_it_was(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    (poison,) = poisons(now, 1)
    run(confirm(operator, preview(operator, now), now), now)
    later = now + 11 * MINUTE
    again = confirm(operator, preview(operator, later), later)
    cancel = partial(cancel_to_its_end, again, operator, later)

    run(again, later, by=publisher_that(cancel, outcome=OutcomeKind.UNSENT))
    poison.refresh_from_db()

    assert counts_of(again) == {"waiting": 1}
    assert (poison.state, poison.redrives, poison.sent_at) == ("open", 1, now)
    assert list(Redrive.objects.values_list("n", "outcome")) == [(1, "sent")]


@pytest.mark.parametrize("failing", [(), (0,)], ids=["handled", "failed"])
def test_an_answer_between_a_cancel_and_its_broker_stands(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    failing: Sequence[int],
) -> None:
    (poison,) = poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)

    class IsWrong(RoutingPublisher):
        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            super().publish(messages)
            cancel_to_its_end(operation, operator, now)
            answer(stream, now, failing=failing)
            return [PublishOutcome(kind=OutcomeKind.UNSENT)] * len(messages)

    run(operation, now, by=IsWrong)
    poison.refresh_from_db()

    standing = "recurred" if failing else "confirmed"
    assert counts_of(operation) == {standing: 1}
    assert (poison.redrives, Redrive.objects.get().outcome) == (1, standing)


def test_what_may_have_been_sent_before_a_cancel_is_unknown_and_falls_silent(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    (poison,) = poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)
    run(operation, now, by=publisher_that(lambda: None, outcome=OutcomeKind.UNKNOWN))

    change(CANCEL, operation, operator, now)
    run(operation, now)
    poison.refresh_from_db()
    at_once = preview_summaries.summarize(operation=preview(operator, now))
    later = now + 11 * MINUTE

    assert counts_of(operation) == {"unknown": 1}
    assert (poison.state, poison.redrives) == ("redriven", 1)
    assert (at_once.will_act, poison.silent(later)) == (0, True)
    assert preview_summaries.summarize(operation=preview(operator, later)).will_act == 1


def test_an_answer_after_a_cancel_stands_on_what_may_have_been_sent(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)

    class Cut(RoutingPublisher):
        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            super().publish(messages)
            return [PublishOutcome(kind=OutcomeKind.UNKNOWN)] * len(messages)

    run(operation, now, by=Cut)
    change(CANCEL, operation, operator, now)
    run(operation, now)
    (fields,) = sent_messages(stream)
    token = fields[b"x-poisonweb-redrive"].decode()

    (result,) = redrive_confirmations_by_token.confirm(
        tokens=[(token, "orders")], now=now
    )

    assert result.status == "confirmed"
    assert counts_of(operation) == {"confirmed": 1}
    assert Poison.objects.get().state == "confirmed"


def test_a_drop_can_be_paused_and_cancelled_between_its_windows(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    number = JUDGED_AT_ONCE + 1
    poisons(now, number)
    operation = confirm(operator, preview(operator, now, verb=Verb.DROP), now)

    change(PAUSE, operation, operator, now)
    paused = run(operation, now)
    change(RESUME, operation, operator, now)
    change(CANCEL, operation, operator, now)
    run(operation, now)

    assert paused is SliceEnd.DONE  # there is nothing to run
    assert counts_of(operation) == {"waiting": number}
    assert Poison.objects.filter(state="open").count() == number


@pytest.mark.parametrize("step", [PAUSE, RESUME, CANCEL])
def test_an_operation_that_is_over_cannot_be_changed(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    step: ControlStep,
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)
    run(operation, now)

    with pytest.raises(OperationOver):
        change(step, operation, operator, now)
    with pytest.raises(OperationOver):
        control.set_rate(operation_id=operation.pk, rate=5, principal=operator, now=now)


def test_each_step_may_be_repeated_and_is_audited_once(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)

    for step in (PAUSE, PAUSE, RESUME, RESUME, PAUSE, CANCEL, CANCEL):
        change(step, operation, operator, now)

    actions = Entry.objects.filter(subject=f"operation:{operation.pk}")
    assert list(actions.order_by("seq").values_list("action", "reason")[1:]) == [
        ("operation.paused", "a test"),
        ("operation.resumed", "a test"),
        ("operation.paused", "a test"),
        ("operation.cancel_requested", "a test"),
    ]


@pytest.mark.parametrize("step", [PAUSE, RESUME])
def test_an_operation_that_is_being_cancelled_goes_on_to_its_end(
    orders: Topic, operator: Principal, now: datetime, step: ControlStep
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)
    change(CANCEL, operation, operator, now)

    with pytest.raises(Refused):
        change(step, operation, operator, now)


def test_who_may_not_operate_cannot_control(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)
    viewer = Principal(actor=operator.actor, scopes=GRANTS[Role.VIEWER])
    stranger = Principal(
        actor=operator.actor, scopes=operator.scopes, topics=("invoices",)
    )

    with pytest.raises(Forbidden):
        change(PAUSE, operation, viewer, now)
    with pytest.raises(Absent):
        change(PAUSE, operation, stranger, now)


@pytest.mark.parametrize("rate", [0, -1, 1_000_000_000])
def test_an_impossible_rate_is_refused(
    orders: Topic, operator: Principal, now: datetime, rate: int
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)

    with pytest.raises(Invalid, match="give 1 to 100,000 messages a second"):
        control.set_rate(
            operation_id=operation.pk, rate=rate, principal=operator, now=now
        )
    with pytest.raises(Invalid, match="rate"):
        preview(operator, now, rate=rate)


def test_a_drop_has_no_rate_and_no_ramp(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now, verb=Verb.DROP), now)

    with pytest.raises(Refused):
        control.set_rate(operation_id=operation.pk, rate=5, principal=operator, now=now)
    with pytest.raises(Invalid):
        preview(operator, now, verb=Verb.DROP, rate=5)
    with pytest.raises(Invalid):
        preview(operator, now, verb=Verb.DROP, ramp=Ramp())


def test_a_rate_hands_few_messages_over_at_once(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 6)
    operation = confirm(operator, preview(operator, now, rate=75), now)
    sizes: list[int] = []

    class Sizes(RoutingPublisher):
        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            sizes.append(len(messages))
            return super().publish(messages)

    run(operation, now, by=Sizes)

    assert sizes == [3, 3]
    assert counts_of(operation) == {"sent": 6}


def change_rate(operation: Operation, operator: Principal, now: datetime) -> None:
    control.set_rate(operation_id=operation.pk, rate=9, principal=operator, now=now)


def pause_and_resume(operation: Operation, operator: Principal, now: datetime) -> None:
    change(PAUSE, operation, operator, now - MINUTE)
    change(RESUME, operation, operator, now)


@pytest.mark.parametrize("act", [change_rate, pause_and_resume])
def test_the_speed_is_measured_from_the_last_resume_or_change_of_the_rate(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    act: Callable[[Operation, Principal, datetime], None],
) -> None:
    poisons(now, 20)
    operation = confirm(operator, preview(operator, now, ramp=Ramp(steps=(1,))), now)
    run(operation, now)

    act(operation, operator, now + 5 * MINUTE)

    operation.refresh_from_db()
    assert operation.pace_since == now + 5 * MINUTE
    assert operation.pace_since_finished == 1


def test_the_speed_is_measured_from_when_a_broker_is_back(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 20)
    operation = confirm(operator, preview(operator, now, ramp=Ramp(steps=(1,))), now)
    run(operation, now, by=AwayPublisher)

    run(operation, now + 60 * MINUTE)

    operation.refresh_from_db()
    assert operation.trouble == ""
    assert operation.pace_since == now + 60 * MINUTE
    assert operation.pace_since_finished == 1


def test_a_paused_operation_waits_for_no_broker(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 5)
    operation = confirm(operator, preview(operator, now), now)
    run(operation, now, by=AwayPublisher)
    operation.refresh_from_db()
    waited_for = operation.trouble

    change(PAUSE, operation, operator, now)

    operation.refresh_from_db()
    assert waited_for
    assert (operation.trouble, operation.troubles, operation.retry_at) == ("", 0, None)


@pytest.mark.parametrize("fault", [None, RuntimeError("a fault")], ids=str)
def test_what_hinders_a_run_is_no_trouble_of_what_was_paused_meanwhile(
    orders: Topic, operator: Principal, now: datetime, fault: Exception | None
) -> None:
    poisons(now, 5)
    operation = confirm(operator, preview(operator, now), now)

    class PausedMeanwhile(AwayPublisher):
        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            change(PAUSE, operation, operator, now)
            if fault:
                raise fault
            return super().publish(messages)

    with pytest.raises(RuntimeError) if fault else nullcontext():
        run(operation, now, by=PausedMeanwhile)

    operation.refresh_from_db()
    assert (operation.state, operation.trouble) == ("paused", "")
    assert operation.retry_at is None


@pytest.mark.parametrize("before", [None, 2_000])
def test_a_lower_rate_is_obeyed_from_the_next_call_on(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
    before: int | None,
) -> None:
    poisons(now, 54)
    operation = confirm(operator, preview(operator, now, rate=before), now)
    clock, sizes = PacerClock(), list[int]()
    pacer = partial(Pacer, timer=clock.timer, sleep=clock.sleep)
    monkeypatch.setattr(running, "Pacer", pacer)

    class Slowed(RoutingPublisher):
        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            sizes.append(len(messages))
            control.set_rate(
                operation_id=operation.pk, rate=1, principal=operator, now=now
            )
            return super().publish(messages)

    ended = run(operation, now, by=Slowed, most=50)

    assert (ended, counts_of(operation)) == (SliceEnd.DONE, {"sent": 54})
    assert sizes == [50, 1, 1, 1, 1]
    assert 0.9 <= min(clock.sleeps[-3:]) <= max(clock.sleeps) <= 1.1


# What became of each, and another try


def test_every_item_has_one_standing_and_the_lists_agree_with_the_counts(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    first, *others = poisons(now, 6)
    operation = confirm(operator, preview(operator, now), now)
    run(
        operation,
        now,
        by=publisher_that(partial(change, PAUSE, operation, operator, now)),
        most=3,
    )
    answer(stream, now, failing=[1])
    operation.refresh_from_db()

    counts = counts_of(operation)
    rows = standings_of(operation, limit=100)
    listed = {
        name: len(standings_of(operation, standings=[name], limit=100))
        for name in counts
    }

    assert counts == listed == {"confirmed": 2, "recurred": 1, "waiting": 3}
    assert [row.number for row in rows] == list(range(6))
    assert standings_of(operation, after=3, limit=1)[0].number == 4
    assert {row.poison for row in rows} == {first.pk, *(each.pk for each in others)}


def test_exactly_those_that_came_back_can_be_tried_again(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 4)
    operation = confirm(operator, preview(operator, now), now)
    run(operation, now)
    answer(stream, now, failing=[0, 2])

    again = preview(
        operator, now, retry_of=operation.pk, standings=("recurred", "refused")
    )
    run(confirm(operator, again, now), now)

    came_back = standings_of(operation, standings=["recurred"], limit=9)
    assert len(came_back) == 2
    assert {item.poison_id for item in again.items.all()} == {
        row.poison for row in came_back
    }
    assert stream.xlen("orders") == 6
    assert Redrive.objects.filter(operation=again.pk, n=2).count() == 2


def test_the_messages_of_an_unknown_operation_cannot_be_tried_again(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    with pytest.raises(Absent):
        preview(operator, now, retry_of=4711, standings=("refused",))
