"""Observe mode: poll depth, age and samples of a queue; remove nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db import transaction

from apps.brokers.adapter_contract import DeadLetter
from apps.brokers.row_locks import lock_topics
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.capture.lanes.batch_size_and_poll_interval import Timer
from apps.capture.lanes.depth_polling import POLL_INTERVAL, Clock, LaneMonitor
from apps.capture.models import Lane, Sample
from apps.core.postgres_connections import borrow

SAMPLE_INTERVAL = 10.0
SAMPLES = 10
SAMPLE_BYTES = 4096
SAMPLE_HEADERS = 100
SAMPLE_HEADER_BYTES = 1024


class Observer:
    """Polls depth and age of a queue, and peeks at its first messages."""

    def __init__(self, *, lane: Lane, clock: Clock, timer: Timer) -> None:
        self.topic = lane.topic
        self.clock = clock
        self.timer = timer
        self.monitor = LaneMonitor(lane=lane, clock=clock, timer=timer)
        self._depth: int | None = None
        self._sampled_at: float | None = None

    def close(self) -> None:
        """Close the observing lane's connection to the broker."""
        self.monitor.close()

    def step(self) -> float:
        """Poll the topic if it is due; return the seconds until the next step."""
        if self.monitor.is_due() and self.monitor.is_read_due():
            depth = self.monitor.poll()
            self.monitor.note_read(is_active=depth != self._depth)
            if depth is not None and self._depth is not None:
                self.monitor.count_letters(depth - self._depth)
            self._depth = depth
            self._sample()
        else:
            self.monitor.heartbeat()
        return POLL_INTERVAL / 2

    def _sample(self) -> None:
        """Peek at the first dead letters and store them as samples, if due."""
        at = self._sampled_at
        if at is not None and self.timer() - at < SAMPLE_INTERVAL:
            return
        self._sampled_at = self.timer()
        if not self.monitor.capabilities.peeks:
            return
        reader = brokers.reader_of(self.topic)
        try:
            letters = reader.peek(limit=SAMPLES)
        finally:
            reader.close()
        _store_samples(self.monitor.lane, letters[:SAMPLES], now=self.clock())


@borrow()
@transaction.atomic
def _store_samples(lane: Lane, letters: Sequence[DeadLetter], *, now: datetime) -> None:
    """Replace the stored dead-letter samples of a topic by these."""
    lock_topics(topics=[lane.pk])
    Sample.objects.filter(topic=lane.topic).delete()
    Sample.objects.bulk_create(
        [
            Sample(
                topic=lane.topic,
                place=place,
                bookmark=letter.bookmark,
                start=letter.body[:SAMPLE_BYTES],
                size=letter.size,
                headers=[
                    part[:SAMPLE_HEADER_BYTES]
                    for header in letter.headers[:SAMPLE_HEADERS]
                    for part in header
                ],
                dequeue_count=letter.dequeue_count,
                seen_at=now,
            )
            for place, letter in enumerate(letters)
        ]
    )
