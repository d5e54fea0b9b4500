"""How many letters a lane takes at once, and how often it asks for more."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime

import pytest

from apps.brokers.adapter_contract import Outbound, PublishOutcome
from apps.brokers.models import Topic
from apps.brokers.polling_interval_of_billed_queues import longest_interval
from apps.capture.intake import services
from apps.capture.intake.occurrence import Occurrence
from apps.capture.intake.services import CaptureAnswer
from apps.capture.lanes import depth_polling
from apps.capture.lanes.batch_size_and_poll_interval import (
    LARGEST_BATCH,
    SMALLEST_BATCH,
    BatchSize,
    LaneRate,
    Polling,
)
from apps.capture.lanes.runner import LaneWork
from apps.capture.models import Lane, Mode
from apps.core import clock
from apps.core.errors import Invalid
from apps.poison.models import Poison
from tests.in_memory_queue_broker import SENT, Queues
from tests.lane_crash_simulation import drain_all, draining, watching_lane
from tests.manual_clock import ManualClock
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_slow_postgres_gets_smaller_batches(
    broker: Queues, mail: Topic, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer, sizes, write = ManualClock(), [], services.write

    def slow(
        *, occurrences: Sequence[Occurrence], now: datetime
    ) -> list[CaptureAnswer]:
        sizes.append(len(occurrences))
        timer.now += 3
        return write(occurrences=occurrences, now=now)

    monkeypatch.setattr(services, "write", slow)
    for _ in range(120):
        broker.put("mail-dead", b"x")
    with draining(mail, now, timer) as work:
        work.size.value = 40
        while work.drain_batch(wait=0.0):
            pass

    assert sizes == [40, 20, *[10] * 6]
    assert Poison.objects.count() == 120


@pytest.mark.parametrize("mode", [Mode.CAPTURE, Mode.TEE])
def test_the_visibility_timeout_is_extended_during_a_slow_batch(
    broker: Queues,
    mail: Topic,
    now: datetime,
    mode: Mode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker.with_(extends=True)
    tee_queue = "copies" if mode is Mode.TEE else ""
    Lane.objects.update(mode=mode.value, tee_queue=tee_queue)
    Topic.objects.filter(pk=mail.pk).update(visibility_timeout=0.3)
    write = services.write

    def until_extended_twice() -> None:
        wait_until(lambda: len(broker.extended) >= 2)

    def slow(
        *, occurrences: Sequence[Occurrence], now: datetime
    ) -> list[CaptureAnswer]:
        if mode is Mode.CAPTURE:
            until_extended_twice()
        return write(occurrences=occurrences, now=now)

    def answer(_: Outbound) -> PublishOutcome:
        until_extended_twice()
        return SENT

    monkeypatch.setattr(services, "write", slow)
    broker.answer = answer
    broker.put("mail-dead", b"x")
    drain_all(mail, now)

    assert set(broker.extended) == {"r1"}
    assert broker.contents("mail-dead") == []


def test_nothing_is_extended_on_a_broker_without_visibility_timeouts(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    Topic.objects.filter(pk=mail.pk).update(visibility_timeout=0.000_001)
    broker.put("mail-dead", b"x")

    drain_all(mail, now)

    assert broker.extended == []


def test_batches_shrink_and_grow_within_their_bounds() -> None:
    size = BatchSize()

    sizes = []
    for seconds in [3.0] * 9 + [1.0] + [0.1] * 9:
        size.adjust(seconds)
        sizes.append(size.value)

    assert sizes[:3] == [250, 125, 62]
    assert sizes[8:11] == [SMALLEST_BATCH, SMALLEST_BATCH, 2 * SMALLEST_BATCH]
    assert sizes[-1] == LARGEST_BATCH


def test_an_idle_lane_polls_less_and_less_often() -> None:
    timer = ManualClock()
    polling = Polling(longest=15.0, timer=timer)
    random.seed(1)

    pauses = []
    for _ in range(6):
        polling.adjust(is_active=False)
        pauses.append(polling.seconds_left())
        assert not polling.is_due()
        timer.now += pauses[-1]
        assert polling.is_due()
    polling.adjust(is_active=True)

    for pause, highest in zip(pauses, [1, 2, 4, 8, 15, 15], strict=True):
        assert 0.75 * highest <= pause <= highest
    assert len(set(pauses)) == 6
    assert (polling.is_due(), polling.seconds_left()) == (True, 0.0)


def test_a_lane_polls_in_intervals_only_where_reads_cost_money(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    broker.with_(polling_interval=15.0)
    Topic.objects.filter(pk=mail.pk).update(options={"maxPollingInterval": "00:00:03"})
    timer = ManualClock()
    with draining(mail, now, timer) as work:
        for _ in range(20):
            work.step()
            timer.now += 1.0
        idle = broker.reads
        broker.put("mail-dead", b"x")
        timer.now += 3.0
        work.step()
        work.step()

    assert 7 <= idle <= 10
    assert broker.reads - idle == 2  # it read a letter, and polled again at once


def test_a_lane_sends_heartbeats_between_two_polls(broker: Queues, mail: Topic) -> None:
    broker.with_(polling_interval=60.0)
    timer, lives = ManualClock(), list[bool]()
    with draining(mail, clock.now(), timer) as work:
        asked_often = asks_in_a_minute(broker, work, timer)
        asked_seldom = asks_in_a_minute(broker, work, timer)
        for _ in range(30):
            Lane.objects.update(seen_at=None, state="away")
            timer.now += depth_polling.POLL_INTERVAL
            work.step()
            lane = Lane.objects.get()
            lives.append(lane.seen_at is not None and lane.state == "running")

    # Each poll makes three calls; between polls there are none.
    looks, fewer = asked_often / 3, asked_seldom / 3
    assert (4 <= looks <= 9, fewer <= 2, all(lives)) == (True, True, True)


def test_an_observed_queue_is_polled_less_and_less_often_too(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    broker.with_(polling_interval=60.0, peeks=False)
    timer = ManualClock()
    watch = watching_lane(mail, now, timer)
    first, then = (asks_in_a_minute(broker, watch, timer) for _ in "ab")

    broker.put("mail-dead", b"x")
    timer.now += 60.0
    watch.step()
    wakened = asks_in_a_minute(broker, watch, timer)

    assert (first >= 5, then <= 2, wakened >= 5) == (True, True, True)
    assert Lane.objects.get().depth == 1


def asks_in_a_minute(broker: Queues, work: LaneWork, timer: ManualClock) -> int:
    """Let a lane work for a minute, and count the calls to its broker."""
    before = broker.call_count
    for _ in range(60):
        timer.now += 1.0
        work.step()
    return broker.call_count - before


@pytest.mark.parametrize(
    ("value", "seconds"), [(None, 15.0), (1, 1.0), ("2.5", 2.5), ("00:01:00", 60.0)]
)
def test_the_longest_interval_is_read_in_seconds_or_as_a_clock(
    value: object, seconds: float
) -> None:
    options = {"maxPollingInterval": value} if value else {}

    assert longest_interval(options, usual=15.0) == seconds


@pytest.mark.parametrize("value", ["soon", 0, -1, True, None, [], "25:99:00", 1e9])
def test_an_invalid_interval_names_its_option(value: object) -> None:
    with pytest.raises(Invalid, match="maxPollingInterval"):
        longest_interval({"maxPollingInterval": value}, usual=15.0)


def test_a_rate_is_of_the_last_minute() -> None:
    timer = ManualClock()
    rate = LaneRate(timer)

    rate.add(5)
    timer.now += 59
    rate.add(2)
    both = rate.per_minute()
    timer.now += 2

    assert (both, rate.per_minute()) == (7.0, 2.0)
