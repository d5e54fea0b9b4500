"""The sweeper process sends what waits in outboxes, and notes what it does."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections

from apps.brokers.adapter_contract import (
    ConsumerPosition,
    Outbound,
    OutcomeKind,
    PublishOutcome,
)
from apps.brokers.models import Broker, Topic
from apps.core import clock
from apps.outbox.models import Outbox, OutboxActivity, OutboxError
from apps.outbox.services import sweeper_activity as notes
from apps.outbox.services.outbox_registration import change_outbox
from apps.outbox.services.sweeper_activity import SweeperNote
from apps.outbox.sweeper_and_row_states import SweeperState
from apps.outbox.sweeping import outbox_sweeper, paused_outbox_counter
from apps.outbox.sweeping.sweeper_process import SweeperProcess
from apps.poison.models import Body, Failure, Poison
from poisonguard.outbox.sweeping.housekeeping import Housekeeping
from tests.in_memory_queue_broker import Queues
from tests.integration.outbox.outbox_builders import ADMIN, events, outbox_at
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def sweeping() -> Iterator[SweeperProcess]:
    """Run the sweeper process in a thread."""
    stop, process = threading.Event(), SweeperProcess(clock=clock.now)

    def run() -> None:
        try:
            process.run(stop)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield process
    finally:
        stop.set()
        thread.join()


def activity(outbox: Outbox) -> OutboxActivity:
    return OutboxActivity.objects.get(outbox=outbox)


def is_in_state(outbox: Outbox, state: str) -> bool:
    return activity(outbox).state == state


def change(**changes: Any) -> None:
    change_outbox(name="shop", changes=changes, principal=ADMIN, now=clock.now())


def test_messages_are_sent_with_their_ids_and_counted(
    outbox: OutboxTables, broker: Queues
) -> None:
    registered = outbox_at(outbox.dsn, window=3)
    outbox.put("m-1", b"\x00\xff", headers=[b"name", b"\xff\x00"], key="k")
    outbox.put_many(9, first=2)

    with sweeping():
        wait_until(lambda: len(broker.published) == 10)
        wait_until(lambda: activity(registered).sent_count == 10)
        wait_until(lambda: activity(registered).waiting == 0)

    first = broker.published[0]
    assert (first.topic, first.body, first.key) == ("orders", b"\x00\xff", "k")
    assert first.headers == ((b"name", b"\xff\x00"), (b"message_id", b"m-1"))
    assert first.dedupe == "shop/m-1"
    note = activity(registered)
    assert (note.state, note.waiting, note.quarantined) == ("sweeping", 0, 0)
    assert outbox.count("sent_at IS NOT NULL") == 10


def test_a_refused_row_is_a_message_with_its_bytes_and_its_writer(
    outbox: OutboxTables, broker: Queues
) -> None:
    refused = PublishOutcome(kind=OutcomeKind.REFUSED, detail="too large")
    usual = broker.answer

    def answer(message: Outbound) -> PublishOutcome:
        return refused if message.body == b"\xff bad" else usual(message)

    broker.answer = answer
    registered = outbox_at(outbox.dsn)
    row = outbox.put("m-bad", b"\xff bad")
    outbox.put_many(3)

    with sweeping():
        wait_until(lambda: len(broker.published) == 3)
        wait_until(Poison.objects.exists)
        wait_until(lambda: activity(registered).quarantined == 1)

    poison = Poison.objects.get()
    assert poison.topic.name == "outbox/shop"
    assert bytes(Body.objects.get().content) == b"\xff bad"
    failure = Failure.objects.get()
    assert f"Row {row}, written by: user" in failure.error_message
    assert "application shop" in failure.error_message
    assert outbox.count("reported_at IS NOT NULL") == 1


def test_a_quarantined_row_of_a_registered_topic_is_a_message_of_that_topic(
    outbox: OutboxTables, broker: Queues
) -> None:
    outbox_at(outbox.dsn)
    topic = Topic.objects.create(
        name="orders of the shop", broker=events(), native_name="orders"
    )
    outbox.allow_nulls()
    outbox.put("m-1", None)

    with sweeping():
        wait_until(Poison.objects.exists)

    assert Poison.objects.get().topic == topic
    assert Failure.objects.get().cause == "undecodable"


def test_a_broker_that_is_away_is_an_error_that_people_see(
    outbox: OutboxTables, broker: Queues
) -> None:
    broker.away = True
    registered = outbox_at(outbox.dsn)
    outbox.put_many(2)

    with sweeping():
        wait_until(lambda: OutboxError.objects.filter(step="publish").exists())
        error = OutboxError.objects.get(step="publish")
        assert "away" in error.message
        assert "Traceback" in error.first_stack
        wait_until(lambda: is_in_state(registered, "broken"))
        broker.away = False
        wait_until(lambda: len(broker.published) == 2)
        wait_until(lambda: is_in_state(registered, "sweeping"))


def test_a_database_that_is_away_is_named_and_comes_back(
    outbox: OutboxTables, broker: Queues
) -> None:
    address = outbox.dsn.rpartition("/")[0]
    registered = outbox_at(f"{address}/there_is_no_such_database")

    with sweeping():
        wait_until(lambda: is_in_state(registered, "unreachable"))
        assert "there_is_no_such_database" in activity(registered).detail
        outbox.put_many(1)
        change(url=f"{outbox.dsn}?sslmode=disable")
        wait_until(lambda: len(broker.published) == 1)


def test_consumers_far_behind_slow_their_topic_only(
    outbox: OutboxTables, broker: Queues
) -> None:
    broker.consumers = [
        ConsumerPosition(
            consumer_group="billing",
            bookmark="1",
            seq=1,
            head_bookmark="101",
            head_seq=101,
            lag=100,
            pending=0,
            oldest_pending_seconds=None,
            clients=1,
        )
    ]
    registered = outbox_at(outbox.dsn, most_lag=100)

    with sweeping() as process:
        outbox.put_many(1)
        wait_until(lambda: is_in_state(registered, "slowed"))
        note = activity(registered)
        assert note.slowed == {"orders": "consumer billing is 100 messages behind"}
        outbox.put_many(1, first=2)
        outbox.put_many(1, first=3, topic="invoices")
        wait_until(lambda: len(broker.published) == 2)
        assert [each.topic for each in broker.published] == ["orders", "invoices"]
        broker.consumers = []
        wait_until(lambda: len(broker.published) == 3)
        assert process is not None


def test_a_broker_that_is_changed_gets_messages_at_its_new_address(
    outbox: OutboxTables, broker: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox_at(outbox.dsn)
    outbox.put_many(1)
    with sweeping():
        wait_until(lambda: len(broker.published) == 1)
        Broker.objects.update(url="env:BROKER_ELSEWHERE")
        wait_until(is_away_once_written_to(outbox))
        monkeypatch.setenv("BROKER_ELSEWHERE", "redis://127.0.0.1:1/1")
        wait_until(lambda: not outbox.waiting)


def is_away_once_written_to(outbox: OutboxTables) -> Callable[[], bool]:
    """Put messages until the variable that the broker's address is in is missed."""
    numbers = itertools.count(2)

    def put() -> bool:
        outbox.put_many(1, first=next(numbers))
        return OutboxError.objects.filter(message__contains="ELSEWHERE").exists()

    return put


def test_a_paused_outbox_is_not_swept_until_it_is_resumed(
    outbox: OutboxTables, broker: Queues
) -> None:
    registered = outbox_at(outbox.dsn, is_paused=True)
    outbox.put_many(1)

    with sweeping():
        wait_until(lambda: activity(registered).noted_at is not None)
        assert is_in_state(registered, "paused")
        assert broker.published == []
        change(is_paused=False)
        wait_until(lambda: len(broker.published) == 1)


def test_a_pause_leaves_the_counts_of_what_waits(
    outbox: OutboxTables, broker: Queues
) -> None:
    registered = outbox_at(outbox.dsn)
    outbox.put_many(3)
    outbox.execute("UPDATE poisonguard_outbox SET due_at = now() + interval '1 hour'")

    with sweeping():
        wait_until(lambda: activity(registered).waiting == 3)
        change(is_paused=True)
        wait_until(lambda: is_in_state(registered, "paused"))

    note = activity(registered)
    assert (note.waiting, note.waiting_bytes > 0) == (3, True)
    assert note.oldest_at is not None


def test_what_waits_in_a_paused_outbox_is_counted(
    outbox: OutboxTables, broker: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paused_outbox_counter, "COUNT_SECONDS", 0.1)
    registered = outbox_at(outbox.dsn, is_paused=True)

    with sweeping():
        wait_until(lambda: activity(registered).counted_at is not None)
        assert activity(registered).waiting == 0
        outbox.put_many(9)
        wait_until(lambda: activity(registered).waiting == 9)

    note = activity(registered)
    assert (note.state, note.oldest_at is not None) == ("paused", True)
    assert broker.published == []
    assert outbox.execute("SELECT FROM poisonguard_outbox_figures") == []


@pytest.mark.parametrize("is_paused", [True, False])
def test_counts_of_a_database_that_is_away_keep_their_time(
    outbox: OutboxTables, broker: Queues, is_paused: bool
) -> None:
    address = outbox.dsn.rpartition("/")[0]
    registered = outbox_at(f"{address}/there_is_none", is_paused=is_paused)
    counted_at = clock.now() - timedelta(minutes=12)
    OutboxActivity.objects.update(waiting=9, counted_at=counted_at)

    with sweeping():
        wait_until(lambda: "there_is_none" in activity(registered).detail)

    note = activity(registered)
    assert note.noted_at is not None
    assert note.noted_at > counted_at
    assert (note.waiting, note.counted_at) == (9, counted_at)


def test_a_table_that_was_not_looked_at_yet_has_no_fresh_counts(
    outbox: OutboxTables, broker: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Housekeeping, "run", lambda self, connection: None)
    registered = outbox_at(outbox.dsn)

    with sweeping():
        wait_until(lambda: is_in_state(registered, "sweeping"))

    assert activity(registered).counted_at is None


def test_a_sweeper_that_waits_writes_over_no_note_of_one_that_works(
    outbox: OutboxTables, broker: Queues
) -> None:
    registered = outbox_at(outbox.dsn)
    waiting = SweeperNote(state=SweeperState.WAITING, newly_sent=1, newly_duplicate=2)
    now = clock.now()

    def store(note: SweeperNote, seconds: float) -> str:
        at = now + timedelta(seconds=seconds)
        notes.note(outbox_id=registered.pk, note=note, errors=(), now=at)
        return activity(registered).state

    assert store(waiting, 0) == "waiting"
    assert store(waiting, 1) == "waiting"
    assert activity(registered).noted_at == now + timedelta(seconds=1)
    works = SweeperNote(state=SweeperState.SWEEPING, counted_at=now, waiting=7)
    assert store(works, 2) == "sweeping"
    assert store(waiting, 3) == "sweeping"
    assert store(waiting, 17) == "sweeping"
    assert activity(registered).noted_at == now + timedelta(seconds=2)
    assert store(waiting, 17.1) == "waiting"
    assert activity(registered).waiting == 7
    assert store(SweeperNote(state=SweeperState.PAUSED), 18) == "paused"
    assert store(waiting, 18.1) == "waiting"
    note = activity(registered)  # what it had sent before counts all the same
    assert (note.sent_count, note.duplicate_count) == (6, 12)


def test_two_processes_never_send_one_message_twice(
    outbox: OutboxTables, broker: Queues
) -> None:
    outbox_at(outbox.dsn, window=5)
    outbox.put_many(100)

    with sweeping(), sweeping():
        wait_until(lambda: len(broker.published) >= 100)

    bodies = [each.body for each in broker.published]
    assert len(bodies) == len(set(bodies)) == 100


def test_notes_are_taken_while_a_sweeper_waits_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_sweeper, "NOTE_SECONDS", 0.001)
    stop, notes_taken = threading.Event(), list[bool]()

    def note() -> None:
        notes_taken.append(stop.is_set())
        if len(notes_taken) == 3:
            stop.set()

    is_stopped = outbox_sweeper._NotedStop(stop, note).wait(60)

    assert is_stopped
    assert len(notes_taken) == 3
