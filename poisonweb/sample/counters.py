"""What the consumers of this process did, minute by minute."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime

from poisonguard.contract import HISTOGRAM_BUCKETS, CounterReport
from poisonweb.sample.subscriptions import BY_TOPIC


@dataclass(kw_only=True, slots=True)
class Minute:
    handled: int = 0
    failed: int = 0
    retried: int = 0
    durations: Counter[int] = field(default_factory=Counter)


class Counters:
    """Count from several threads; `reporter` and a sequence make each report one."""

    def __init__(self) -> None:
        self._reporter = uuid.uuid4()
        self._sequence = 0
        self._lock = threading.Lock()
        self._minutes: dict[tuple[datetime, str], Minute] = {}

    def add(self, topic: str, *, failed: bool, retried: int, seconds: float) -> None:
        with self._lock:
            minute = self._minutes.setdefault((this_minute(), topic), Minute())
            minute.failed += failed
            minute.handled += not failed
            minute.retried += retried
            minute.durations[bucket_of(seconds)] += 1

    def take(self, *, before: datetime) -> list[CounterReport]:
        """Take out the minutes that are over by then; nobody gets them twice."""
        with self._lock:
            over = sorted(key for key in self._minutes if key[0] < before)
            return [self._report(*key, self._minutes.pop(key)) for key in over]

    def _report(self, at: datetime, topic: str, minute: Minute) -> CounterReport:
        self._sequence += 1
        return CounterReport(
            reporter=self._reporter,
            sequence=self._sequence,
            topic=topic,
            consumer_group=BY_TOPIC[topic].consumer_group,
            client_name=BY_TOPIC[topic].client_name,
            minute=at,
            handled=minute.handled,
            failed=minute.failed,
            skipped=0,
            retried=minute.retried,
            duration_ms_hist=tuple(sorted(minute.durations.items())),
        )


def this_minute() -> datetime:
    return datetime.now(UTC).replace(second=0, microsecond=0)


def bucket_of(seconds: float) -> int:
    """Return b for 2^b up to 2^(b+1) milliseconds."""
    return min(max(int(seconds * 1000).bit_length() - 1, 0), HISTOGRAM_BUCKETS - 1)
