"""Poll depth and positions of a topic, and write them and a heartbeat on its lane.

Polling changes nothing at the broker.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import F

from apps.bookmarks import services as bookmarks
from apps.brokers.adapter_contract import Delivered
from apps.brokers.errors import QueueExpected
from apps.brokers.row_locks import lock_topics
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.capture.lanes.batch_size_and_poll_interval import LaneRate, Polling, Timer
from apps.capture.models import Counter, Lane, LaneState
from apps.core.hashed_ids import digest_of
from apps.core.postgres_connections import borrow
from apps.core.text_cleaning import storable

POLL_INTERVAL = 2.0
# Consumers that reported counters this recently are counted; the broker's count would
# count their messages twice.
SDK_COUNTERS_WITHIN = timedelta(days=1)

Clock = Callable[[], datetime]


class LaneMonitor:
    """Polls the topic of a lane, at most every two seconds.

    It says when to read dead letters: seldom from an idle queue where each read costs
    money. `held_reason` says why letters stay in their
    queue although they are captured, or is "". `missing_reason` says that the broker
    makes the queue with its first dead letter; it is "" once the queue exists.
    """

    def __init__(self, *, lane: Lane, clock: Clock, timer: Timer) -> None:
        self.lane = lane
        self.topic = lane.topic
        self.clock = clock
        self.timer = timer
        self._rate = LaneRate(timer)
        self.admin = brokers.admin_of(lane.topic)
        self.capabilities = brokers.capabilities_of(lane.topic)
        longest = brokers.polling_interval_of(lane.topic)
        self._polling = Polling(longest=longest, timer=timer)
        self.held_reason = ""
        self.missing_reason = ""
        self._polled_at: float | None = None
        self._heartbeat_at: float | None = None
        self._counted_minute: datetime | None = None

    def close(self) -> None:
        """Close the connection to the broker."""
        self.admin.close()

    def is_due(self) -> bool:
        """Tell whether to poll the queue's depth and the consumers' positions now."""
        return self._is_due_since(self._polled_at)

    def is_read_due(self) -> bool:
        """Tell whether to read dead letters now."""
        return self._polling.is_due()

    def seconds_to_read(self) -> float:
        """Return the seconds until the next read of dead letters is due."""
        return self._polling.seconds_left()

    def note_read(self, *, is_active: bool) -> None:
        """Plan the next read of the queue: at once if it is active, else ever later."""
        self._polling.adjust(is_active=is_active)

    def count_letters(self, number: int) -> None:
        """Count dead letters that came, for the rate of the lane."""
        self._rate.add(number)

    def heartbeat(self) -> None:
        """Write that the lane is alive, without a call to its broker."""
        if self._is_due_since(self._heartbeat_at):
            rate = self._rate.per_minute()
            self._write_state(rate=rate, now=self.clock())

    def poll(self) -> int | None:
        """Store the broker's positions, depth and age of the topic; return depth."""
        self._polled_at = self.timer()
        now = self.clock()
        consumers = self.admin.consumers()
        with borrow(), transaction.atomic():
            lock_topics(topics=[self.topic.pk])
            bookmarks.observe(topic=self.topic, consumers=consumers, now=now)
        depth = self._depth()
        if self.capabilities.delivered:
            self._count_deliveries(now)
        self._write_state(
            detail="" if depth is None else f"{depth} in the {self._queue}",
            depth=depth,
            oldest_at=self.admin.oldest_at(),
            rate=self._rate.per_minute(),
            now=now,
        )
        return depth

    @property
    def _queue(self) -> str:
        """Return what to call the lane's queue: "queue" or "dead-letter queue"."""
        return "queue" if self.topic.takes_requests else "dead-letter queue"

    def _depth(self) -> int | None:
        """Return the depth of the dead-letter queue; None if it does not exist yet."""
        self.missing_reason = ""
        try:
            return self.admin.depth()
        except QueueExpected as expected:
            self.missing_reason = str(expected)
            return None

    def _write_state(self, *, now: datetime, **values: Any) -> None:
        """Store that the lane runs, or why it holds dead letters or has no queue."""
        self._heartbeat_at = self.timer()
        state = LaneState.RUNNING
        if self.held_reason:
            state, values["detail"] = LaneState.HOLDING, self.held_reason
        elif self.missing_reason:
            state, values["detail"] = LaneState.EXPECTED, self.missing_reason
        record_state(lane=self.lane, state=state, now=now, **values)

    def _is_due_since(self, at: float | None) -> bool:
        """Tell whether a poll interval has passed since a time; None is never."""
        return at is None or self.timer() - at >= POLL_INTERVAL

    def _count_deliveries(self, now: datetime) -> None:
        """Store the broker's count of the topic's deliveries, once a minute."""
        if _minute_of(now) != self._counted_minute:
            delivered = self.admin.delivered()
            self._counted_minute = _minute_of(now)
            if delivered is not None:
                count_deliveries(lane=self.lane, delivered=delivered, now=now)


@borrow()
def record_state(*, lane: Lane, state: LaneState, now: datetime, **values: Any) -> None:
    """Write the state of a lane on its row."""
    if "detail" in values:
        values["detail"] = storable(values["detail"], limit=500)
    Lane.objects.filter(pk=lane.pk).update(state=state.value, seen_at=now, **values)


@borrow()
def count_captured(*, lane: Lane, number: int) -> None:
    """Add to the number of dead letters that a lane has captured."""
    Lane.objects.filter(pk=lane.pk).update(captured=F("captured") + number)


@borrow()
@transaction.atomic
def count_deliveries(*, lane: Lane, delivered: Delivered, now: datetime) -> None:
    """Count a topic's deliveries since the last poll, in that poll's minute.

    A total that fell, or that counts from another start, says nothing about them.
    """
    lock_topics(topics=[lane.pk])
    row = Lane.objects.select_for_update().get(pk=lane.pk)
    before, at = row.delivered_total, row.delivered_at
    is_same_count = delivered.since == row.delivered_since
    if before is not None and at is not None and is_same_count:
        if _minute_of(at) == _minute_of(now):
            return  # each minute is written once, when it is over
        if delivered.total > before and not _has_sdk_counters(row, now):
            _insert_deliveries(row, at, delivered.total - before, now=now)
    Lane.objects.filter(pk=lane.pk).update(
        delivered_total=delivered.total,
        delivered_since=delivered.since,
        delivered_at=now,
    )


def _minute_of(moment: datetime) -> datetime:
    """Return the start of the minute in which a lane counts a topic's deliveries."""
    return moment.replace(second=0, microsecond=0)


def _has_sdk_counters(lane: Lane, now: datetime) -> bool:
    """Tell whether guards count this topic: then the lane must not."""
    recent = Counter.objects.filter(topic=lane.topic_id, source="sdk")
    return recent.filter(minute__gt=now - SDK_COUNTERS_WITHIN).exists()


_COUNT = """
INSERT INTO capture_counter (day, reporter, sequence, topic_id, consumer_group,
    client_name, minute, source, handled, failed, skipped, retried, duration_ms_hist,
    captured_at)
VALUES (%(day)s, %(reporter)s, %(sequence)s, %(topic)s, '', '', %(minute)s, 'broker',
        %(number)s, 0, 0, 0, '{}', %(now)s)
ON CONFLICT DO NOTHING
"""


def _insert_deliveries(lane: Lane, at: datetime, number: int, *, now: datetime) -> None:
    """Insert a topic's deliveries that the broker counted in a minute, once."""
    name = digest_of(b"delivered", str(lane.topic_id).encode())[:16]
    values: dict[str, Any] = {
        "day": now.date(),
        "reporter": uuid.UUID(bytes=name),
        "sequence": int(_minute_of(at).timestamp()) // 60,
        "topic": lane.topic_id,
        "minute": _minute_of(at),
        "number": number,
        "now": now,
    }
    with connection.cursor() as cursor:
        cursor.execute(_COUNT, values)
