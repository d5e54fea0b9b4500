"""Topics are removed while lanes and guards write to them: nothing is lost or orphaned.

What meets here would meet once in a year: it is held up on purpose, or tried again and
again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, ParamSpec, TypeVar

import pytest
from pytest_django import Settings

from apps.audit import verification
from apps.brokers.adapter_contract import Delivered, FoundTopic
from apps.brokers.errors import Removed
from apps.brokers.models import Broker, Topic
from apps.brokers.services import broker_registration
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.capture import unused_topic_removal
from apps.capture.intake import first_failure_inserts_without_merge
from apps.capture.lanes import depth_polling, lane_mode_and_pause, observe_only_lane
from apps.capture.lanes.dead_letter_drain import Drain
from apps.capture.lanes.runner import LaneRunner
from apps.capture.models import Counter, HeldDeadLetter, Lane, Mode, Sample
from apps.capture.unused_topic_removal import RecordsExist
from apps.core import clock
from apps.core.actor import Actor
from apps.core.advisory_locks import Locks
from apps.core.errors import Absent
from apps.poison.models import Poison
from apps.team.rights import GRANTS, Principal, Role
from tests import in_memory_queue_broker
from tests.failure_report_builders import count_up, counter, poisons
from tests.in_memory_queue_broker import Queues
from tests.lane_crash_simulation import draining, serving, topic_on_queues
from tests.position_opening_and_settling import told_by_broker
from tests.postgres_connection_limit_and_lock_waits import waits_for_a_lock
from tests.races import at_once, on_another_connection
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.present]

ADA = Principal(actor=Actor.user("ada"), scopes=GRANTS[Role.ADMIN])
ROUNDS = 12

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class Removal:
    """One removal of a topic; `done` says whether it was removed."""

    topic: Topic
    done: bool | None = field(default=None, init=False)

    def __call__(self) -> None:
        try:
            unused_topic_removal.remove_topics(
                topics=[self.topic.pk], principal=ADA, now=clock.now()
            )
            self.done = True
        except RecordsExist:
            self.done = False

    def aside(self) -> None:
        """Remove the topic over another connection."""
        on_another_connection(self)

    def before(self, work: Callable[P, R]) -> Callable[P, R]:
        """Wrap the work: remove the topic before it begins."""

        def late(*args: P.args, **kwargs: P.kwargs) -> R:
            if self.done is None:
                self.aside()
            return work(*args, **kwargs)

        return late

    def after(self, work: Callable[P, R]) -> Callable[P, R]:
        """Wrap the work: remove the topic after it ends."""

        def early(*args: P.args, **kwargs: P.kwargs) -> R:
            result = work(*args, **kwargs)
            if self.done is None:
                self.aside()
            return result

        return early


def run_its_lane(topic: Topic) -> None:
    """Run one lane until it ends by itself."""
    stop = threading.Event()
    alarm = threading.Timer(60, stop.set)
    alarm.start()
    with closing(Locks()) as locks:
        LaneRunner(
            topic_id=topic.pk,
            row_of=lambda pk: Lane.objects.possible().filter(pk=pk).first(),
            locks=locks,
            stop=stop,
            clock=clock.now,
        ).run()
    alarm.cancel()
    assert not stop.is_set()


def running() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


# --- lanes


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.CAPTURE])
def test_a_lane_ends_with_its_topic_and_a_new_topic_gets_a_new_one(
    broker: Queues, now: datetime, mode: Mode
) -> None:
    topic = topic_on_queues(now, mode=mode)
    with serving():
        wait_until(lambda: Lane.objects.get().state == "running")

        Removal(topic)()

        wait_until(lambda: f"lane-{topic.pk}" not in running())
        assert broker.readers == []
        other = topic_on_queues(now, mode=Mode.CAPTURE)
        broker.put("mail-dead", b"1")
        wait_until(Poison.objects.exists)

    assert Lane.objects.get().topic_id == other.pk


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (in_memory_queue_broker.Admin, "consumers"),
        (in_memory_queue_broker.Admin, "depth"),
        (depth_polling, "count_deliveries"),
        (depth_polling, "record_state"),
        (observe_only_lane, "_store_samples"),
    ],
)
def test_an_observing_lane_ends_at_any_step_when_its_topic_is_removed(
    broker: Queues,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: object,
    name: str,
) -> None:
    topic = topic_on_queues(now, mode=Mode.OBSERVE)
    broker.put("mail-dead", b"1")
    broker.consumers = [told_by_broker()]
    broker.with_(delivered=True).delivered = Delivered(total=1, at=now)
    removal = Removal(topic)
    monkeypatch.setattr(place, name, removal.before(getattr(place, name)))

    run_its_lane(topic)

    assert removal.done
    assert (Topic.objects.exists(), Sample.objects.exists()) == (False, False)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
    assert len(broker.contents("mail-dead")) == 1


@pytest.mark.parametrize("limit", [1_000, 10])
def test_a_letter_stays_queued_when_its_topic_is_removed_before_the_capture(
    broker: Queues,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
    limit: int,
) -> None:
    settings.POISONWEB_BODY_LIMIT = limit
    topic = topic_on_queues(now, mode=Mode.CAPTURE)
    broker.put("mail-dead", b"x" * 100)
    removal = Removal(topic)
    monkeypatch.setattr(
        in_memory_queue_broker.Reader,
        "read",
        removal.after(in_memory_queue_broker.Reader.read),
    )

    run_its_lane(topic)

    assert removal.done
    assert len(broker.contents("mail-dead")) == 1
    assert (Poison.objects.exists(), HeldDeadLetter.objects.exists()) == (False, False)
    assert broker.readers == []


def test_a_topic_is_not_removed_while_its_first_letter_is_captured(
    broker: Queues, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_on_queues(now, mode=Mode.CAPTURE)
    broker.put("mail-dead", b"1")
    removal = Removal(topic)
    other = threading.Thread(target=removal.aside)

    def held_up(*args: Any, **kwargs: Any) -> object:
        other.start()
        # It waits for what is being written.
        wait_until(waits_for_a_lock)
        return write(*args, **kwargs)

    write = first_failure_inserts_without_merge.write
    monkeypatch.setattr(first_failure_inserts_without_merge, "write", held_up)
    with draining(topic, now) as work:
        work.drain_batch(wait=0.0)
    other.join()

    assert removal.done is False
    assert (Poison.objects.count(), broker.contents("mail-dead")) == (1, [])


def test_letters_are_captured_or_their_topic_is_removed_never_both(
    broker: Queues, now: datetime
) -> None:
    def take(work: Drain) -> None:
        with work, suppress(Removed):
            work.drain_batch(wait=0.0)

    for number in range(ROUNDS):
        name = f"t{number}"
        removal = Removal(topic_on_queues(now, name=name))
        broker.put(f"{name}-dead", b"1")

        at_once(partial(take, draining(removal.topic, now)), removal)

        letters = len(broker.contents(f"{name}-dead"))
        captured = Poison.objects.filter(topic__name=name).count()
        assert (letters, captured) == ((1, 0) if removal.done else (0, 1))


# --- guards


def test_no_counter_refers_to_a_removed_topic(broker: Queues, now: datetime) -> None:
    def count(name: str) -> None:
        with suppress(Removed):
            count_up(now, counter(topic=name))

    for number in range(ROUNDS):
        name = f"t{number}"
        removal = Removal(topic_on_queues(now, name=name))

        at_once(partial(count, name), removal)

        # A counter that comes first keeps the topic; a later one creates it again.
        carried = Topic.objects.exclude(broker=None).filter(name=name)
        assert carried.exists() is not removal.done
        assert not Counter.objects.exclude(topic__in=Topic.objects.all()).exists()


def test_a_heartbeat_is_to_be_sent_again_when_its_topic_is_removed_meanwhile(
    broker: Queues, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    removal = Removal(topic_on_queues(now))
    monkeypatch.setattr(brokers, "topics_named", removal.after(brokers.topics_named))

    with pytest.raises(Removed, match="ask again"):
        poisons(now, 1, topic="mail")
    (poison,) = poisons(now, 1, topic="mail")

    assert removal.done
    assert poison.topic.broker is None


# --- people


def test_observing_adopting_and_removing_never_deadlock(
    broker: Queues, now: datetime
) -> None:
    discovered = FoundTopic(
        name="new", depth=None, dead_letter_queue="q", dead_letters=None
    )

    def observe(topic: Topic) -> None:
        with suppress(Removed):
            lane_mode_and_pause.observe_all(topics=[topic], principal=ADA, now=now)

    def adopt(broker: Broker) -> None:
        with suppress(Absent):
            broker_registration.adopt_topics(
                broker=broker, topics=[discovered], principal=ADA, now=now
            )

    def remove(broker: Broker) -> None:
        unused_topic_removal.remove_broker(broker=broker, principal=ADA, now=now)

    for _ in range(ROUNDS):
        topic = topic_on_queues(now)
        Lane.objects.all().delete()
        row = Broker.objects.get()

        at_once(partial(observe, topic), partial(adopt, row), partial(remove, row))

        assert not Broker.objects.exists()
        assert not Lane.objects.exists()

    assert verification.verify().ok
