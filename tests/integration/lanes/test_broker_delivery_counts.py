"""What a broker has delivered, as its observing lane counts it by the minute."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from apps.brokers.adapter_contract import Delivered
from apps.brokers.models import Topic
from apps.capture.models import Counter
from tests.failure_report_builders import count_up, counter
from tests.in_memory_queue_broker import Queues
from tests.lane_crash_simulation import watching_lane
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE = timedelta(minutes=1)


def deliver(
    broker: Queues, topic: Topic, now: datetime, total: int, since: str = ""
) -> None:
    broker.delivered = Delivered(total=total, at=now, since=since)
    watching_lane(topic, now, ManualClock()).step()


def counted() -> list[tuple[datetime, int, str]]:
    rows = Counter.objects.order_by("minute")
    return list(rows.values_list("minute", "handled", "source"))


def test_deliveries_of_a_broker_count_once_in_their_minute(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    at = now.replace(second=5, microsecond=0)

    # Each call is a new lane, which finds the last total on the row.
    deliver(broker, mail, at, 100)
    deliver(broker, mail, at + timedelta(seconds=30), 110)
    deliver(broker, mail, at + MINUTE, 130)
    deliver(broker, mail, at + 2 * MINUTE, 130)
    deliver(broker, mail, at + 3 * MINUTE, 137)

    start = at.replace(second=0)
    assert counted() == [
        (start, 30, "broker"),
        (start + 2 * MINUTE, 7, "broker"),
    ]
    row = Counter.objects.first()
    assert row is not None
    assert (row.failed, row.consumer_group, row.topic_id) == (0, "", mail.pk)


def test_a_total_that_fell_or_restarted_counts_nothing(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    at = now.replace(second=5, microsecond=0)

    deliver(broker, mail, at, 100, "monday")
    deliver(broker, mail, at + MINUTE, 40, "monday")  # it fell
    deliver(broker, mail, at + 2 * MINUTE, 90, "tuesday")  # it began again
    deliver(broker, mail, at + 3 * MINUTE, 95, "tuesday")

    assert counted() == [(at.replace(second=0) + 2 * MINUTE, 5, "broker")]


def test_deliveries_of_a_broker_do_not_count_beside_sdk_counters(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    count_up(now, counter(topic="mail", minute=now.isoformat()))

    deliver(broker, mail, now, 100)
    deliver(broker, mail, now + MINUTE, 150)
    deliver(broker, mail, now + timedelta(days=2), 200)
    deliver(broker, mail, now + timedelta(days=2) + MINUTE, 260)

    sources = [(handled, source) for _, handled, source in counted()]
    # Until no SDK counter has come for a day.
    assert sources == [(10, "sdk"), (50, "broker"), (60, "broker")]
