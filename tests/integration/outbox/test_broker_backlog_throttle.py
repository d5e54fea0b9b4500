"""Topics are slowed by lag and depth; a broker that hangs slows nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from apps.brokers.adapter_contract import ConsumerPosition
from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.models import Broker
from apps.outbox.models import Outbox, OutboxError
from apps.outbox.sweeping import broker_backlog_throttle
from apps.outbox.sweeping.broker_backlog_throttle import (
    FRESH_SECONDS,
    LOOK_SECONDS,
    MOST_TOPICS,
    TopicBacklogWatch,
)
from tests.in_memory_queue_broker import Admin, Queues, adapted
from tests.integration.outbox.outbox_builders import outbox_at
from tests.integration.outbox.test_sweeping_registered_outboxes import (
    activity,
    is_in_state,
    sweeping,
)
from tests.manual_clock import ManualClock
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.waiting import wait_until


@dataclass(slots=True)
class CountedQueues(Queues):
    """Queues that note which topics were asked about, and hang for one of them."""

    topics: list[str] = field(default_factory=list)
    hanging: str = ""
    answer_comes: threading.Event = field(default_factory=threading.Event)
    is_broken: bool = False

    def topic_admin(self, broker: BrokerSettings, topic: TopicSettings) -> Admin:
        self.topics.append(topic.topic)
        if topic.topic == self.hanging:
            self.answer_comes.wait()
        if self.is_broken:
            raise ZeroDivisionError("a fault of the adapter")
        return Queues.topic_admin(self, broker, topic)


@pytest.fixture
def queues() -> Iterator[CountedQueues]:
    broker = CountedQueues()
    with adapted(broker):
        yield broker
        broker.answer_comes.set()


def outbox_with(**limits: Any) -> Outbox:
    broker = Broker(name="events", kind="queues", url="env:BROKER_NOWHERE")
    return Outbox(name="shop", broker=broker, **limits)


def position(group: str, lag: int | None) -> ConsumerPosition:
    return ConsumerPosition(
        consumer_group=group,
        bookmark="1",
        seq=1,
        head_bookmark="101",
        head_seq=101,
        lag=lag,
        pending=0,
        oldest_pending_seconds=None,
        clients=1,
    )


def reason(**limits: Any) -> str:
    watch = TopicBacklogWatch(outbox_with(**limits))
    watch.note_topics(["orders"])
    watch.ask("orders")
    return watch.slowed().get("orders", "")


@pytest.mark.parametrize(("depth", "most", "is_slowed"), [(4, 5, False), (5, 5, True)])
def test_a_queue_of_the_broker_that_is_too_long_slows_its_topic(
    queues: CountedQueues, depth: int, most: int, is_slowed: bool
) -> None:
    for _ in range(depth):
        queues.put("orders", b"body")

    why = reason(most_depth=most)

    assert why == ("the broker has 5 messages in its queue" if is_slowed else "")


def test_a_queue_that_does_not_exist_yet_has_nothing_in_it(
    queues: CountedQueues,
) -> None:
    queues.expects_queues = True

    watch = TopicBacklogWatch(outbox_with(most_depth=1))
    watch.note_topics(["orders"])
    watch.ask("orders")

    assert (watch.slowed(), watch.errors) == ({}, [])


def test_the_slowest_consumer_counts_and_is_named(queues: CountedQueues) -> None:
    queues.consumers = [position("a", 3), position("b", 9), position("c", None)]

    assert reason(most_lag=9) == "consumer b is 9 messages behind"
    assert reason(most_lag=10) == ""
    queues.consumers = [position("", 9)]
    assert reason(most_lag=9) == "its consumers are 9 messages behind"
    queues.consumers = [position("c", None)]
    assert reason(most_lag=1) == ""


def test_lag_and_depth_both_count_where_both_have_a_limit(
    queues: CountedQueues,
) -> None:
    queues.consumers = [position("a", 3)]
    queues.put("orders", b"body")

    assert "consumer a" in reason(most_lag=3, most_depth=9)
    assert "queue" in reason(most_lag=4, most_depth=1)
    assert reason(most_lag=4, most_depth=2) == ""


def test_a_topic_is_asked_about_again_after_some_seconds_the_oldest_first(
    queues: CountedQueues,
) -> None:
    clock = ManualClock()
    watch = TopicBacklogWatch(outbox_with(most_depth=1), timer=clock)
    watch.note_topics(["a", "b"])
    assert watch.next_due() == "a"
    watch.ask("a")
    clock.now += 1
    assert watch.next_due() == "b"
    watch.ask("b")
    assert watch.next_due() is None
    clock.now += LOOK_SECONDS - 1
    assert watch.next_due() == "a"
    clock.now += 1
    assert watch.next_due() == "a"
    watch.ask("a")
    assert watch.next_due() == "b"


def test_a_figure_that_is_too_old_slows_nothing(queues: CountedQueues) -> None:
    clock = ManualClock()
    watch = TopicBacklogWatch(outbox_with(most_depth=1), timer=clock)
    queues.put("orders", b"body")
    watch.note_topics(["orders"])
    watch.ask("orders")

    clock.now += FRESH_SECONDS
    assert watch.slowed()
    clock.now += 0.1
    assert not watch.slowed()


def test_only_the_latest_topics_are_asked_about(queues: CountedQueues) -> None:
    queues.put("t-0", b"body")
    watch = TopicBacklogWatch(outbox_with(most_depth=1))
    watch.note_topics(["t-0"])
    watch.ask("t-0")
    assert watch.slowed()

    watch.note_topics(f"t-{number}" for number in range(1, MOST_TOPICS))
    assert watch.slowed()
    watch.note_topics(["t-0", f"t-{MOST_TOPICS}"])
    assert watch.slowed()
    watch.note_topics(f"t-{number}" for number in range(1, MOST_TOPICS + 1))

    assert not watch.slowed()
    assert watch.next_due() != "t-0"


def test_a_broker_that_is_away_slows_nothing_and_is_counted(
    queues: CountedQueues,
) -> None:
    queues.away = True
    watch = TopicBacklogWatch(outbox_with(most_lag=1))
    watch.note_topics(["orders"])
    watch.ask("orders")
    watch.ask("orders")

    assert watch.slowed() == {}
    [error] = watch.errors
    assert (error.count, error.kind) == (2, "the broker: Unavailable")
    assert error.last_text == "orders: The queues in memory are away."


def test_a_fault_of_an_adapter_does_not_end_the_watch(
    queues: CountedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_backlog_throttle, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(broker_backlog_throttle, "LOOK_SECONDS", 0.01)
    queues.is_broken = True
    watch = TopicBacklogWatch(outbox_with(most_lag=1))
    watch.note_topics(["orders"])
    watch.start()
    try:
        wait_until(lambda: watch.errors and watch.errors[0].count > 2)
    finally:
        watch.stop()

    assert watch.errors[0].kind == "ZeroDivisionError"
    assert "Traceback" in watch.errors[0].first_stack


def test_a_broker_that_hangs_makes_nobody_wait(
    queues: CountedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_backlog_throttle, "TICK_SECONDS", 0.01)
    queues.hanging = "orders"
    queues.put("orders", b"body")
    watch = TopicBacklogWatch(outbox_with(most_depth=1))
    watch.note_topics(["orders"])
    watch.start()
    try:
        wait_until(lambda: queues.topics)

        watch.note_topics(["invoices"])
        assert watch.slowed() == {}  # and not for ever
        queues.answer_comes.set()
        wait_until(lambda: set(watch.slowed()) == {"orders"})
        wait_until(lambda: "invoices" in queues.topics)
    finally:
        watch.stop()


def test_without_a_limit_no_broker_is_asked(
    queues: CountedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_backlog_throttle, "TICK_SECONDS", 0.01)
    names = {thread.name for thread in threading.enumerate()}
    watch = TopicBacklogWatch(outbox_with())
    watch.note_topics(["orders"])

    watch.start()

    assert {thread.name for thread in threading.enumerate()} == names
    watch.stop()


@pytest.mark.django_db(transaction=True)
def test_rows_are_sent_while_the_broker_does_not_say_how_many_it_has(
    outbox: OutboxTables, queues: CountedQueues
) -> None:
    outbox_at(outbox.dsn, most_depth=1)
    queues.hanging = "orders"

    with sweeping():
        outbox.put_many(1)
        wait_until(lambda: queues.topics)
        outbox.put_many(5, first=2)
        wait_until(lambda: len(queues.published) == 6)


@pytest.mark.django_db(transaction=True)
def test_rows_wait_until_their_queue_is_shorter(
    outbox: OutboxTables, queues: CountedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_backlog_throttle, "LOOK_SECONDS", 0.1)
    registered = outbox_at(outbox.dsn, most_depth=3)

    with sweeping():
        outbox.put_many(3)
        wait_until(lambda: is_in_state(registered, "slowed"))
        note = activity(registered)
        assert note.slowed == {"orders": "the broker has 3 messages in its queue"}
        assert note.detail == "orders: the broker has 3 messages in its queue"
        outbox.put_many(2, first=4)
        outbox.put_many(1, first=9, topic="invoices")
        wait_until(lambda: len(queues.published) == 4)
        assert queues.published[-1].topic == "invoices"
        queues.queues["orders"].clear()
        wait_until(lambda: len(queues.published) == 6)


@pytest.mark.django_db(transaction=True)
def test_errors_of_the_watch_are_shown_with_those_of_the_sweeper(
    outbox: OutboxTables, queues: CountedQueues
) -> None:
    registered = outbox_at(outbox.dsn, most_depth=1)
    queues.is_broken = True

    with sweeping():
        outbox.put_many(1)
        wait_until(OutboxError.objects.exists)

    error = OutboxError.objects.get()
    assert (error.step, error.kind) == ("figures", "ZeroDivisionError")
    assert activity(registered).state == "sweeping"
