"""Runs of an operation: the next run takes over after a crash or an outage."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from django.db import IntegrityError, connection
from django.test.utils import CaptureQueriesContext
from redis import Redis

from apps.brokers.adapter_contract import OutcomeKind, PublishOutcome
from apps.brokers.models import Broker, Topic
from apps.brokers.services.topics_and_routing_publisher import (
    RoutedMessage,
    RoutingPublisher,
)
from apps.poison.models import Hold, ItemWindow, Poison, Redrive
from apps.poison.services import redrive_confirmations_by_token
from apps.team.rights import Principal
from apps.triage.item_standings import standings_of
from apps.triage.models import Operation
from apps.triage.services import (
    orphaned_operations_and_expired_rows,
    preview_summaries,
    redrive_message_building,
    running,
)
from apps.triage.services.broker_send_claims import Windows
from apps.triage.services.redrive_message_building import ReadItems
from apps.triage.services.running import SliceEnd
from tests.failure_report_builders import capture, failure, poisons
from tests.lane_crash_simulation import Killed
from tests.triage_operation_runner import (
    MINUTE,
    DyingPublisher,
    confirm,
    counts_of,
    preview,
    run,
    sent_messages,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_item_of_a_dead_run_is_released_when_its_consumer_answers(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)

    with pytest.raises(Killed):
        run(operation, now, by=DyingPublisher)
    (fields,) = sent_messages(stream)
    header = fields[b"x-poisonweb-redrive"].decode()
    capture(now, failure(now, bookmark="9-0", redrive=header))
    ended = run(operation, now)

    assert (ended, counts_of(operation)) == (SliceEnd.DONE, {"recurred": 1})
    assert not Hold.objects.exists()
    assert preview_summaries.summarize(operation=preview(operator, now)).will_act == 1


def test_messages_wait_and_are_not_unknown_while_the_broker_refuses_connections(
    orders: Topic, stream: Redis, operator: Principal, now: datetime, redis_url: str
) -> None:
    poisons(now, 2)
    operation = confirm(operator, preview(operator, now), now)
    Broker.objects.update(url="redis://127.0.0.1:1/0")

    ended = run(operation, now)
    between, redrives = counts_of(operation), Redrive.objects.count()
    states = set(Poison.objects.values_list("state", "redrives"))
    held_number = Hold.objects.count()
    operation.refresh_from_db()
    due = orphaned_operations_and_expired_rows.orphans(now=now)
    Broker.objects.update(url=redis_url)
    finished = run(operation, now + MINUTE)

    assert (ended, finished) == (SliceEnd.LATER, SliceEnd.DONE)
    assert operation.trouble
    assert operation.pk not in due.to_run
    assert (between, redrives) == ({"waiting": 2}, 0)
    assert (states, held_number) == ({("open", 0)}, 2)
    assert counts_of(operation) == {"sent": 2}
    assert stream.xlen("orders") == 2


def test_a_message_that_a_dead_run_may_have_sent_stays_unknown_while_the_broker_is_away(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)
    with pytest.raises(Killed):
        run(operation, now, by=DyingPublisher)
    Broker.objects.update(url="redis://127.0.0.1:1/0")

    ended = run(operation, now)

    assert (ended, counts_of(operation)) == (SliceEnd.LATER, {"unknown": 1})
    assert Redrive.objects.get().copies == 2


@pytest.mark.parametrize(
    ("answer", "state"), [(None, "redriven"), ("confirmed", "confirmed")]
)
def test_a_silent_message_keeps_its_earlier_send_when_a_second_one_was_not_made(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    answer: str | None,
    state: str,
) -> None:
    (poison,) = poisons(now, 1)
    run(confirm(operator, preview(operator, now), now), now)
    (fields,) = sent_messages(stream)
    header = fields[b"x-poisonweb-redrive"].decode()
    later = now + 11 * MINUTE
    again = confirm(operator, preview(operator, later), later)

    class AnsweredMeanwhile(RoutingPublisher):
        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            if answer:
                redrive_confirmations_by_token.confirm(
                    tokens=[(header, "orders")], now=later
                )
            return [PublishOutcome(kind=OutcomeKind.UNSENT, detail="away")] * len(
                messages
            )

    ended = run(again, later, by=AnsweredMeanwhile)
    poison.refresh_from_db()

    assert (ended, counts_of(again)) == (SliceEnd.LATER, {"waiting": 1})
    assert (poison.state, poison.redrives) == (state, 1)
    assert Redrive.objects.count() == 1


def test_a_held_message_that_was_answered_meanwhile_is_skipped_with_the_reason(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    run(confirm(operator, preview(operator, now), now), now)
    (fields,) = sent_messages(stream)
    header = fields[b"x-poisonweb-redrive"].decode()
    later = now + 11 * MINUTE
    again = confirm(operator, preview(operator, later), later)

    class AnsweredMeanwhile(RoutingPublisher):
        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            redrive_confirmations_by_token.confirm(
                tokens=[(header, "orders")], now=later
            )
            return [PublishOutcome(kind=OutcomeKind.UNSENT, detail="away")] * len(
                messages
            )

    run(again, later, by=AnsweredMeanwhile)
    ended = run(again, later + MINUTE)

    (item,) = standings_of(again, limit=10)
    assert (ended, counts_of(again)) == (SliceEnd.DONE, {"skipped": 1})
    assert item.explanation == "meanwhile it became confirmed"
    assert (stream.xlen("orders"), Hold.objects.count()) == (1, 0)


def test_in_order_messages_after_an_unknown_one_wait(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    for number in range(3):
        poisons(now, 1, body=b"%d" % number)
    operation = confirm(operator, preview(operator, now, ordered=True), now)

    class CutAtTheSecond(RoutingPublisher):
        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            if b"1" in [message.body for message in messages]:
                return [PublishOutcome(kind=OutcomeKind.UNKNOWN, detail="cut")] * len(
                    messages
                )
            return super().publish(messages)

    ended = run(operation, now, by=CutAtTheSecond)
    between = counts_of(operation)
    finished = run(operation, now + MINUTE)

    assert (ended, finished) == (SliceEnd.LATER, SliceEnd.DONE)
    assert between == {"sent": 1, "unknown": 1, "waiting": 1}
    assert [fields[b"body"] for fields in sent_messages(stream)] == [b"0", b"1", b"2"]


def test_messages_in_flight_of_a_dead_run_are_sent_again_under_their_ids(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 3)
    operation = confirm(operator, preview(operator, now), now)

    with pytest.raises(Killed):
        run(operation, now, by=DyingPublisher)
    ended = run(operation, now)

    tokens = [fields[b"x-poisonweb-redrive"] for fields in sent_messages(stream)]
    assert (ended, counts_of(operation)) == (SliceEnd.DONE, {"sent": 3})
    assert (len(tokens), len(set(tokens))) == (6, 3)


class DiesLater(RoutingPublisher):
    """Publishes some windows, and dies in the next before any of it is stored."""

    def __init__(self, windows: int) -> None:
        super().__init__()
        self.windows = windows

    def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
        outcomes = super().publish(messages)
        self.windows -= 1
        if self.windows < 0:
            raise Killed
        return outcomes


def test_at_a_death_one_claim_is_in_doubt_and_only_it_is_sent_twice(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
) -> None:
    poisons(now, 7)
    operation = confirm(operator, preview(operator, now), now)

    with pytest.raises(Killed):
        run(operation, now, by=partial(DiesLater, windows=1), most=2)
    between = counts_of(operation)
    ended = run(operation, now, most=2)

    tokens = [fields[b"x-poisonweb-redrive"] for fields in sent_messages(stream)]
    assert between == {"sent": 2, "sending": 2, "waiting": 3}
    assert (ended, counts_of(operation)) == (SliceEnd.DONE, {"sent": 7})
    assert (len(tokens), len(set(tokens))) == (7 + 2, 7)
    assert not Hold.objects.exists()


def test_a_window_is_published_only_after_the_one_before_is_marked(
    orders: Topic,
    operator: Principal,
    now: datetime,
) -> None:
    poisons(now, 6)
    operation = confirm(operator, preview(operator, now), now)
    on_record: list[int] = []

    class Looks(RoutingPublisher):
        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            on_record.append(Redrive.objects.filter(outcome="sent").count())
            return super().publish(messages)

    run(operation, now, by=Looks, most=2)

    assert on_record == [0, 2, 4]


@pytest.mark.parametrize(("most", "sizes"), [(7, [3, 3, 1]), (2, [2, 1, 2, 1, 1])])
def test_what_is_read_at_once_is_of_one_window(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    most: int,
    sizes: list[int],
) -> None:
    poisons(now, 7)
    operation = confirm_with_windows_of_three(operator, now)
    read: list[int] = []

    class Sizes(RoutingPublisher):
        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            read.append(len(messages))
            return super().publish(messages)

    run(operation, now, by=Sizes, most=most)

    assert read == sizes
    assert counts_of(operation) == {"sent": 7}


def test_the_next_messages_are_read_without_a_list_of_windows_or_of_topics(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 7)
    windows = Windows(confirm_with_windows_of_three(operator, now))
    windows.read(after=0, most=3, now=now)

    with CaptureQueriesContext(connection) as queries:
        items = windows.read(after=3, most=3, now=now)

    assert [message.item for message in items.messages] == [3, 4, 5]
    assert {message.addressed.topic for message in items.messages} == {orders}
    # That of the messages is sent in binary, and is not seen here.
    assert list(queries) == []


def confirm_with_windows_of_three(operator: Principal, now: datetime) -> Operation:
    operation = preview(operator, now)
    Operation.objects.update(window_size=3)
    return confirm(operator, operation, now)


def test_a_broker_that_is_away_is_called_once_although_a_second_window_was_read(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
) -> None:
    poisons(now, 6)
    operation = confirm(operator, preview(operator, now), now)
    window_sizes: list[int] = []

    class Away(RoutingPublisher):
        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            window_sizes.append(len(messages))
            return [PublishOutcome(kind=OutcomeKind.UNKNOWN, detail="away")] * len(
                messages
            )

    ended = run(operation, now, by=Away, most=2)
    between = counts_of(operation)
    finished = run(operation, now + MINUTE, most=2)

    assert (ended, window_sizes, between) == (
        SliceEnd.LATER,
        [2],
        {"unknown": 2, "waiting": 4},
    )
    assert (finished, counts_of(operation)) == (SliceEnd.DONE, {"sent": 6})
    assert stream.xlen("orders") == 6


def test_a_refusal_with_hostile_text_is_stored(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)

    class Refuses(RoutingPublisher):
        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            words = "no \0 queue \ud800"
            return [PublishOutcome(kind=OutcomeKind.REFUSED, detail=words)] * len(
                messages
            )

    ended = run(operation, now, by=Refuses)

    assert (ended, counts_of(operation)) == (SliceEnd.DONE, {"refused": 1})
    assert Redrive.objects.get().detail.startswith("no \u2400 queue ")


def test_a_published_window_is_marked_although_the_next_could_not_be_read(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    poisons(now, 4)
    operation = confirm(operator, preview(operator, now), now)
    read = redrive_message_building.read

    def read_once(*, first: int, **arguments: Any) -> ReadItems:
        if first:
            raise ZeroDivisionError
        return read(first=first, **arguments)

    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(redrive_message_building, "read", read_once)
        run(operation, now, most=2)
    between = counts_of(operation)
    ended = run(operation, now + MINUTE, most=2)

    assert between == {"sent": 2, "waiting": 2}
    assert (ended, counts_of(operation)) == (SliceEnd.DONE, {"sent": 4})
    assert stream.xlen("orders") == 4


def test_a_published_window_is_marked_although_the_next_claim_failed(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 4)
    operation = confirm(operator, preview(operator, now), now)

    class Hinders(RoutingPublisher):
        """Lets the next claim find a count that does not allow it."""

        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            ItemWindow.objects.update(skipped=2)
            return super().publish(messages)

    with pytest.raises(IntegrityError):
        run(operation, now, by=Hinders, most=2)
    ItemWindow.objects.update(skipped=0)
    between = counts_of(operation)
    ended = run(operation, now + MINUTE, most=2)

    assert between == {"sent": 2, "waiting": 2}
    assert (ended, counts_of(operation)) == (SliceEnd.DONE, {"sent": 4})
    assert stream.xlen("orders") == 4


def test_a_run_leaves_no_connection_behind(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)
    before = sessions()

    run(operation, now)

    # Of the sessions before, one may still have been ending.
    wait_until(lambda: sessions() <= before)


def sessions() -> set[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend'"
        )
        return {pid for (pid,) in cursor.fetchall()}


def test_an_item_without_a_brokers_answer_is_released_when_its_consumer_answers(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)

    class Silent(RoutingPublisher):
        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            super().publish(messages)
            (fields,) = sent_messages(stream)
            header = fields[b"x-poisonweb-redrive"].decode()
            capture(now, failure(now, bookmark="9-0", redrive=header))
            return [PublishOutcome(kind=OutcomeKind.UNKNOWN, detail="cut")] * len(
                messages
            )

    ended = run(operation, now, by=Silent)

    assert (ended, counts_of(operation)) == (SliceEnd.DONE, {"recurred": 1})
    assert not Hold.objects.exists()


def test_an_unexpected_error_is_shown_and_the_operation_waits(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)

    class BrokenPublisher(RoutingPublisher):
        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            raise ZeroDivisionError("by us")

    with pytest.raises(ZeroDivisionError):
        run(operation, now, by=BrokenPublisher)

    operation.refresh_from_db()
    assert operation.trouble == "ZeroDivisionError: by us"
    assert (
        operation.pk not in orphaned_operations_and_expired_rows.orphans(now=now).to_run
    )
    assert (
        operation.pk
        in orphaned_operations_and_expired_rows.orphans(now=now + MINUTE).to_run
    )


def test_a_run_that_lost_its_lock_writes_nothing_more(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)

    def clock() -> datetime:
        Operation.objects.filter(pk=operation.pk).update(run=99)
        return now

    with RoutingPublisher() as publisher:
        ended = running.run(operation_id=operation.pk, publisher=publisher, clock=clock)

    assert ended is SliceEnd.ELSEWHERE
    assert not Redrive.objects.exists()
