"""A lane that observes counts its queue and keeps samples, and changes nothing."""

from __future__ import annotations

from datetime import datetime

import pytest

from apps.brokers.models import Topic
from apps.capture.lanes import depth_polling, observe_only_lane
from apps.capture.models import Lane, Sample
from apps.poison.models import Poison
from tests.in_memory_queue_broker import Queues
from tests.lane_crash_simulation import draining, watching_lane
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.django_db(transaction=True)


def test_observing_removes_nothing_and_counts_as_no_delivery(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    headers = [(b"n", b"v" * 5000)]
    for number in range(12):
        broker.put("mail-dead", b"%d" % number + b"x" * 5000, headers)
    before = broker.contents("mail-dead")

    watching_lane(mail, now, ManualClock()).step()

    lane = Lane.objects.get()
    assert broker.contents("mail-dead") == before
    assert (broker.reads, Poison.objects.count(), lane.depth) == (0, 0, 12)
    assert not any(m.redelivered for m in broker.queues["mail-dead"])
    samples = Sample.objects.order_by("place")
    assert [bytes(sample.start[:1]) for sample in samples][:3] == [b"0", b"1", b"2"]
    assert {len(sample.start) for sample in samples} == {observe_only_lane.SAMPLE_BYTES}
    assert len(bytes(samples[0].headers[1])) == observe_only_lane.SAMPLE_HEADER_BYTES
    assert len(samples) == observe_only_lane.SAMPLES


def test_no_sample_is_read_where_a_peek_changes_the_queue(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    broker.with_(peeks=False)
    broker.put("mail-dead", b"x")

    watching_lane(mail, now, ManualClock()).step()

    assert (Sample.objects.count(), Lane.objects.get().depth) == (0, 1)


def test_samples_follow_the_queue_and_are_deleted_when_it_is_drained(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    timer = ManualClock()
    watch = watching_lane(mail, now, timer)
    broker.put("mail-dead", b"old")
    watch.step()
    broker.queues["mail-dead"].clear()
    broker.put("mail-dead", b"new")

    timer.now += depth_polling.POLL_INTERVAL
    watch.step()
    soon = [bytes(s.start) for s in Sample.objects.all()]
    timer.now += observe_only_lane.SAMPLE_INTERVAL
    watch.step()
    later = [bytes(s.start) for s in Sample.objects.all()]
    draining(mail, now).close()

    assert (soon, later) == ([b"old"], [b"new"])
    assert not Sample.objects.exists()


def test_the_rate_of_an_observed_queue_is_that_of_its_growth(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    timer = ManualClock()
    watch = watching_lane(mail, now, timer)
    rates = []
    for number in (100, 5, 2):
        for _ in range(number):
            broker.put("mail-dead", b"x")
        watch.step()
        rates.append(Lane.objects.get().rate)
        timer.now += depth_polling.POLL_INTERVAL
    timer.now += 60
    watch.step()

    # Earlier letters are no rate. The row has the depth of before the poll.
    assert (rates, Lane.objects.get().rate) == ([0.0, 0.0, 5.0], 0.0)
