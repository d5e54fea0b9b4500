"""Letters without names, and copies: none lost or captured twice when a lane dies."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial

import pytest
from django.db import transaction

from apps.brokers.adapter_contract import Outbound, OutcomeKind, PublishOutcome
from apps.brokers.models import Topic
from apps.capture.intake import dead_letter_deduplication
from apps.capture.models import Delivery, HeldDeadLetter, Lane, Mode
from apps.core.errors import Unavailable
from apps.poison.models import Body, Failure, Poison
from tests.in_memory_queue_broker import SENT, Queues, adapted
from tests.lane_crash_simulation import (
    Killed,
    drain_all,
    draining,
    dying,
    topic_on_queues,
)
from tests.postgres_connection_limit_and_lock_waits import waits_for_a_lock
from tests.races import on_another_connection
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

HOSTILE = bytes(range(256))
HEADERS = ((b"\xff\x00", b"\xfe"), (b"twice", b"1"), (b"twice", b"2"))
# Every step of three batches; more, and larger ones, for the written numbers.
ROUNDS = 3 if os.environ.get("SOAK") else 1
REFUSED = PublishOutcome(kind=OutcomeKind.REFUSED, detail="there is no such queue")
UNKNOWN = PublishOutcome(kind=OutcomeKind.UNKNOWN, detail="the connection broke")


@pytest.fixture(params=[True, False], ids=["named", "nameless"])
def broker(request: pytest.FixtureRequest) -> Iterator[Queues]:
    queues = Queues(names=request.param)
    with adapted(queues):
        yield queues


@pytest.fixture
def nameless() -> Iterator[Queues]:
    queues = Queues(names=False)
    with adapted(queues):
        yield queues


def bodies() -> Counter[bytes]:
    return Counter(bytes(body.content) for body in Body.objects.all())


def die_and_go_on(broker: Queues, topic: Topic, now: datetime) -> int:
    """Drain with a death at each step in turn; return the number of deaths."""
    for at in range(1, 200):
        bodies_before = Poison.objects.count()
        letters = [b"a%d" % at, b"b%d" % at, b"a%d" % at, HOSTILE]
        for body in letters:
            broker.put("mail-dead", body, HEADERS)
        with dying(at) as death:
            try:
                drain_all(topic, now, at_once=2)
            except Killed:
                broker.cut()
        drain_all(topic, now, at_once=2)

        assert broker.contents("mail-dead") == [], f"died at step {at}"
        assert Poison.objects.count() == bodies_before + 4, f"died at step {at}"
        if death.steps < at:
            return at - 1
    raise AssertionError("it never got through")


def test_each_letter_is_captured_once_at_whatever_step_a_lane_dies(
    broker: Queues, now: datetime
) -> None:
    topic = topic_on_queues(now)

    deaths = sum(die_and_go_on(broker, topic, now) for _ in range(ROUNDS))

    assert deaths >= 2 * 3 * 2
    assert Failure.objects.count() == Poison.objects.count()
    assert max(bodies().values()) == bodies()[HOSTILE]


def test_each_copy_arrives_at_whatever_step_a_lane_dies(
    broker: Queues, now: datetime
) -> None:
    topic = topic_on_queues(now, mode=Mode.TEE)

    deaths = die_and_go_on(broker, topic, now)

    copies = broker.contents("mail-copies")
    assert deaths >= 2 * 4 * 2
    assert {headers for _, headers in copies} == {HEADERS}
    copied, captured = Counter(body for body, _ in copies), bodies()
    # Each death sends at most one batch twice.
    assert captured
    assert copied >= captured
    assert copied.total() <= captured.total() + 2 * deaths


def test_a_copy_that_is_tried_again_has_the_same_dedupe_id(
    broker: Queues, now: datetime
) -> None:
    topic = topic_on_queues(now, mode=Mode.TEE)
    broker.put("mail-dead", b"x")
    with dying(at=4), pytest.raises(Killed):
        drain_all(topic, now)
    broker.cut()

    drain_all(topic, now)

    ids = [message.dedupe for message in broker.published]
    assert len(ids) == 2
    assert len(set(ids)) == 1


def test_two_letters_that_are_equal_in_every_byte_are_two_poisons(
    nameless: Queues, now: datetime
) -> None:
    topic = topic_on_queues(now)
    nameless.put("mail-dead", b"x", HEADERS)
    nameless.put("mail-dead", b"x", HEADERS)

    drain_all(topic, now)

    assert Poison.objects.count() == 2
    assert len({bytes(poison.identity) for poison in Poison.objects.all()}) == 2
    assert Delivery.objects.count() == 0


def test_a_redelivered_letter_that_was_not_captured_is_captured(
    nameless: Queues, now: datetime
) -> None:
    topic = topic_on_queues(now)
    nameless.put("mail-dead", b"x")
    with draining(topic, now) as work:
        work.reader.read(limit=10, wait=0.0)  # and here the lane dies

    drain_all(topic, now)

    assert Poison.objects.count() == 1


def test_a_lane_waits_for_the_commit_of_its_dead_predecessor(
    nameless: Queues, now: datetime
) -> None:
    topic = topic_on_queues(now)
    nameless.put("mail-dead", b"x")
    with (
        ThreadPoolExecutor() as pool,
        draining(topic, now) as work,
        transaction.atomic(),
    ):
        work._capture(work.reader.read(limit=1, wait=0.0))  # and here the lane dies
        nameless.cut()
        successor = pool.submit(on_another_connection, partial(drain_all, topic, now))
        # Postgres still executes the last statement.
        wait_until(lambda: successor.done() or waits_for_a_lock())

    successor.result()
    assert nameless.contents("mail-dead") == []
    assert Poison.objects.count() == 1


def test_of_two_equal_letters_one_row_matches_only_one(
    nameless: Queues, now: datetime
) -> None:
    topic = topic_on_queues(now)
    for _ in "ab":
        nameless.put("mail-dead", b"x")
    with draining(topic, now) as work:
        first, _ = work.reader.read(limit=2, wait=0.0)
        work._capture([first])  # and here the lane dies

    drain_all(topic, now)

    assert (Poison.objects.count(), nameless.contents("mail-dead")) == (2, [])


def test_another_header_or_another_queue_is_another_letter(
    nameless: Queues, now: datetime
) -> None:
    topic = topic_on_queues(now)
    nameless.put("mail-dead", b"x", [(b"n", b"1")])
    with draining(topic, now) as work:
        work._capture(work.reader.read(limit=1, wait=0.0))  # and here the lane dies
    nameless.queues["mail-dead"][0].headers = ((b"n", b"2"),)

    drain_all(topic, now)

    assert Poison.objects.count() == 2


def test_the_row_of_a_held_letter_matches_no_equal_letter(
    nameless: Queues, now: datetime
) -> None:
    topic = topic_on_queues(now, mode=Mode.TEE)
    answers = iter([REFUSED])
    nameless.answer = lambda _: next(answers, SENT)
    nameless.put("mail-dead", b"x")
    with draining(topic, now) as work:
        work.drain_batch(wait=0.0)
        row = HeldDeadLetter.objects.get()
        nameless.put("mail-dead", b"x")
        nameless.queues["mail-dead"][1].redelivered = True

        work.drain_batch(wait=0.0)

    assert row.reason == "captured, but not copied: there is no such queue"
    assert (Poison.objects.count(), len(nameless.contents("mail-dead"))) == (2, 1)


def test_a_letter_whose_copy_is_refused_is_held_until_its_copy_is_sent(
    broker: Queues, now: datetime
) -> None:
    topic = topic_on_queues(now, mode=Mode.TEE)
    broker.answer = lambda message: REFUSED if message.body == b"bad" else SENT
    for body in (b"good", b"bad", b"fine"):
        broker.put("mail-dead", body)
    drain_all(topic, now)
    letters, listed = broker.contents("mail-dead"), HeldDeadLetter.objects.count()

    broker.answer = lambda _: SENT
    drain_all(topic, now)

    assert ([body for body, _ in letters], listed) == ([b"bad"], 1)
    assert (broker.contents("mail-dead"), HeldDeadLetter.objects.count()) == ([], 0)
    assert (Poison.objects.count(), Lane.objects.get().captured) == (3, 3)


def test_a_letter_whose_copy_is_unknown_stays_and_the_others_leave_the_queue(
    broker: Queues, now: datetime
) -> None:
    topic = topic_on_queues(now, mode=Mode.TEE)

    def answer(message: Outbound) -> PublishOutcome:
        return UNKNOWN if message.body == b"lost" else SENT

    broker.answer = answer
    for body in (b"sent", b"lost"):
        broker.put("mail-dead", body)

    with pytest.raises(Unavailable, match="mail-copies: the connection broke"):
        drain_all(topic, now)

    assert broker.contents("mail-dead") == [(b"lost", ())]


def test_a_letter_delivered_for_the_first_time_is_always_new(
    nameless: Queues, now: datetime
) -> None:
    topic = topic_on_queues(now)
    nameless.put("mail-dead", b"x")
    with dying(at=5), pytest.raises(Killed):  # the letter is gone, its row is not
        drain_all(topic, now)
    nameless.put("mail-dead", b"x")

    drain_all(topic, now)

    assert (Poison.objects.count(), nameless.contents("mail-dead")) == (2, [])


def test_rows_of_letters_that_cannot_come_back_are_deleted(
    nameless: Queues, now: datetime
) -> None:
    topic = topic_on_queues(now)
    nameless.put("mail-dead", b"x")
    with dying(at=5), pytest.raises(Killed):  # the letter is gone, its row is not
        drain_all(topic, now)
    assert (nameless.contents("mail-dead"), Delivery.objects.count()) == ([], 1)

    drain_all(topic, now + timedelta(minutes=59))
    soon = Delivery.objects.count()
    drain_all(topic, now + dead_letter_deduplication.IN_DOUBT + timedelta(seconds=1))

    assert (soon, Delivery.objects.count()) == (1, 0)
