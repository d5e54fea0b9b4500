"""Depth, positions and heartbeat of a lane, polled and written on the lane's row.

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
from apps.brokers.errors import QueueExpected
from apps.brokers.ports import Delivered
from apps.brokers.row_locks import hold
from apps.brokers.services import topics as brokers
from apps.capture.lanes.throttling import Polling, Rate, Timer
from apps.capture.models import Counter, Lane, LaneState
from apps.core.ids import digest_of
from apps.core.sessions import borrow
from apps.core.text import storable

LOOK_EVERY = 2.0
# Whoever counted so lately counts for itself: the broker's word would count it twice.
COUNTS_ITSELF = timedelta(days=1)

Clock = Callable[[], datetime]


class LaneMonitor:
    """Polls one lane's topic every two seconds, however often it is asked to.

    `polling` is when it is time to look for dead letters; where each look has its
    price, nothing else is asked in between either. `held_back` is why letters stay in
    their queue although they are captured; "" where none does. `expected` says that the
    queue is made with its first dead letter; "" once it is there.
    """

    def __init__(self, *, lane: Lane, clock: Clock, timer: Timer) -> None:
        self.lane = lane
        self.topic = lane.topic
        self.clock = clock
        self.timer = timer
        self.rate = Rate(timer)
        self.admin = brokers.admin_of(lane.topic)
        self.capabilities = brokers.capabilities_of(lane.topic)
        longest = brokers.polling_interval_of(lane.topic)
        self.polling = Polling(longest=longest, timer=timer)
        self.held_back = ""
        self.expected = ""
        self._looked_at: float | None = None
        self._told_at: float | None = None
        self._counted_minute: datetime | None = None

    def close(self) -> None:
        self.admin.close()

    def is_due(self) -> bool:
        return self._is_past(self._looked_at)

    def heartbeat(self) -> None:
        """Write that the lane is alive, without asking its broker."""
        if self._is_past(self._told_at):
            rate = self.rate.per_minute()
            self._note(rate=rate, now=self.clock())

    def poll(self) -> int | None:
        """Note positions, depth, age and deliveries; give the depth."""
        self._looked_at = self.timer()
        now = self.clock()
        consumers = self.admin.consumers()
        with borrow(), transaction.atomic():
            hold(topics=[self.topic.pk])
            bookmarks.observe(topic=self.topic, consumers=consumers, now=now)
        depth = self._depth()
        if self.capabilities.delivered:
            self._count_deliveries(now)
        self._note(
            detail="" if depth is None else f"{depth} in the dead-letter queue",
            depth=depth,
            oldest_at=self.admin.oldest_at(),
            rate=self.rate.per_minute(),
            now=now,
        )
        return depth

    def _depth(self) -> int | None:
        """Count the queue; a queue that is still to be made is no trouble."""
        self.expected = ""
        try:
            return self.admin.depth()
        except QueueExpected as expected:
            self.expected = str(expected)
            return None

    def _note(self, *, now: datetime, **values: Any) -> None:
        self._told_at = self.timer()
        state = LaneState.RUNNING
        if self.held_back:
            state, values["detail"] = LaneState.HOLDING, self.held_back
        elif self.expected:
            state, values["detail"] = LaneState.EXPECTED, self.expected
        note(lane=self.lane, state=state, now=now, **values)

    def _is_past(self, at: float | None) -> bool:
        return at is None or self.timer() - at >= LOOK_EVERY

    def _count_deliveries(self, now: datetime) -> None:
        if _minute(now) != self._counted_minute:
            told = self.admin.delivered()
            self._counted_minute = _minute(now)
            if told is not None:
                count_deliveries(lane=self.lane, told=told, now=now)


@borrow()
def note(*, lane: Lane, state: LaneState, now: datetime, **values: Any) -> None:
    """Say how a lane is."""
    if "detail" in values:
        values["detail"] = storable(values["detail"], limit=500)
    Lane.objects.filter(pk=lane.pk).update(state=state.value, seen_at=now, **values)


@borrow()
def note_captured(*, lane: Lane, number: int) -> None:
    Lane.objects.filter(pk=lane.pk).update(captured=F("captured") + number)


@borrow()
@transaction.atomic
def count_deliveries(*, lane: Lane, told: Delivered, now: datetime) -> None:
    """Count what a broker delivered since it was last asked, in the minute of that.

    A total that fell, or that begins anew elsewhere, says nothing of the time between.
    """
    hold(topics=[lane.pk])
    known = Lane.objects.select_for_update().get(pk=lane.pk)
    before, at = known.delivered_total, known.delivered_at
    goes_on = told.since == known.delivered_since
    if before is not None and at is not None and goes_on:
        if _minute(at) == _minute(now):
            return  # each minute is written once; this one is not over
        if told.total > before and not _counts_itself(known, now):
            _count(known, at, told.total - before, now=now)
    Lane.objects.filter(pk=lane.pk).update(
        delivered_total=told.total, delivered_since=told.since, delivered_at=now
    )


def _minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def _counts_itself(lane: Lane, now: datetime) -> bool:
    recent = Counter.objects.filter(topic=lane.topic_id, source="sdk")
    return recent.filter(minute__gt=now - COUNTS_ITSELF).exists()


_COUNT = """
INSERT INTO capture_counter (day, reporter, sequence, topic_id, consumer_group,
    client_name, minute, source, handled, failed, skipped, retried, duration_ms_hist,
    captured_at)
VALUES (%(day)s, %(reporter)s, %(sequence)s, %(topic)s, '', '', %(minute)s, 'broker',
        %(number)s, 0, 0, 0, '{}', %(now)s)
ON CONFLICT DO NOTHING
"""


def _count(lane: Lane, at: datetime, number: int, *, now: datetime) -> None:
    """Write one counter, which is named by its topic and its minute."""
    name = digest_of(b"delivered", str(lane.topic_id).encode())[:16]
    values: dict[str, Any] = {
        "day": now.date(),
        "reporter": uuid.UUID(bytes=name),
        "sequence": int(_minute(at).timestamp()) // 60,
        "topic": lane.topic_id,
        "minute": _minute(at),
        "number": number,
        "now": now,
    }
    with connection.cursor() as cursor:
        cursor.execute(_COUNT, values)
