"""The counters of one process: merged while they wait, counted once at the server.

A batch stays unchanged until `confirm_batch`: if only its answer was lost, the server
recognises its (reporter, sequence) pairs and answers duplicate. Later counts merge
behind the batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from uuid import UUID

from poisonguard.contract import COUNT_LIMIT, CounterReport

BATCH = 500
# Minutes that wait while the server is away, over all keys. Beyond this limit the
# minutes of an hour merge into one: 24 entries for each key and day.
MINUTES_LIMIT = 10_000
_MINUTES_PER_HOUR = 60


@dataclass(frozen=True, slots=True)
class CounterKey:
    """A client and the topic that it counts."""

    topic: str
    consumer_group: str
    client_name: str


@dataclass(slots=True)
class _MinuteCounts:
    handled: int = 0
    failed: int = 0
    skipped: int = 0
    retried: int = 0
    durations: dict[int, int] = field(default_factory=dict)

    def add(self, other: _MinuteCounts) -> None:
        """Add the message counts of another minute to these."""
        self.handled += other.handled
        self.failed += other.failed
        self.skipped += other.skipped
        self.retried += other.retried
        for bucket, number in other.durations.items():
            self.durations[bucket] = self.durations.get(bucket, 0) + number

    @property
    def greatest_count(self) -> int:
        """Return the greatest of a minute's unsent counts, durations included."""
        counts = (self.handled, self.failed, self.skipped, self.retried)
        return max(*counts, *self.durations.values())


_Entry = tuple[CounterKey, int]  # a key and a minute since the epoch


class Counters:
    """The counters of one process, minute by minute; more than a limit are merged."""

    def __init__(self, reporter: UUID, *, minutes_limit: int = MINUTES_LIMIT) -> None:
        self._reporter = reporter
        self._minutes_limit = minutes_limit
        self._lock = threading.Lock()
        self._counts_by_minute: dict[_Entry, _MinuteCounts] = {}
        self._batch: tuple[CounterReport, ...] = ()
        self._sequence = 0
        self._limit = minutes_limit

    def count(
        self,
        key: CounterKey,
        *,
        handled: int = 0,
        failed: int = 0,
        skipped: int = 0,
        retried: int = 0,
        durations: Mapping[int, int],
    ) -> None:
        """Add message counts of a guard's key to the present minute."""
        counts = _MinuteCounts(handled, failed, skipped, retried, dict(durations))
        with self._lock:
            self._merge((key, _this_minute()), counts)
            if len(self._counts_by_minute) > self._limit:
                self._merge_hours()

    def batch(self, *, everything: bool = False) -> tuple[CounterReport, ...]:
        """Return the counter reports to send; the same until `confirm_batch`.

        A minute is due when it is over; with `everything`, at once.
        """
        with self._lock:
            if not self._batch:
                now = _this_minute()
                # Not "before now": a clock set back would hold them for long.
                due = (e for e in self._counts_by_minute if everything or e[1] != now)
                entries = list(islice(due, BATCH))
                self._batch = tuple(map(self._take_report, entries))
            return self._batch

    def confirm_batch(self) -> None:
        """Forget the batch of counters, which the server has accepted."""
        with self._lock:
            self._batch = ()

    def rest(self) -> list[CounterReport]:
        """Remove and return all counter reports that were not confirmed."""
        reports = list[CounterReport]()
        while batch := self.batch(everything=True):
            reports += batch
            self.confirm_batch()
        return reports

    @property
    def waiting(self) -> int:
        """Return how many counter reports are in the batch and behind it."""
        with self._lock:
            return len(self._batch) + len(self._counts_by_minute)

    def _take_report(self, entry: _Entry) -> CounterReport:
        """Remove a minute's message counts, and return them as the next report."""
        key, minute = entry
        counts = self._counts_by_minute.pop(entry)
        self._sequence += 1
        return CounterReport(
            reporter=self._reporter,
            sequence=self._sequence,
            topic=key.topic,
            consumer_group=key.consumer_group,
            client_name=key.client_name,
            minute=datetime.fromtimestamp(minute * 60, UTC),
            handled=counts.handled,
            failed=counts.failed,
            skipped=counts.skipped,
            retried=counts.retried,
            duration_ms_hist=tuple(sorted(counts.durations.items())),
        )

    def _merge(self, entry: _Entry, counts: _MinuteCounts) -> None:
        """Add message counts to those of a key and minute, which may be new."""
        existing = self._counts_by_minute.setdefault(entry, _MinuteCounts())
        existing.add(counts)

    def _merge_hours(self) -> None:
        """Save memory: merge unsent counts of past minutes by hour, to COUNT_LIMIT."""
        now, before = _this_minute(), self._counts_by_minute
        self._counts_by_minute = {}
        for (key, minute), counts in before.items():
            hour = minute - minute % _MINUTES_PER_HOUR
            existing = self._counts_by_minute.get((key, hour))
            fits = (
                existing is None
                or existing.greatest_count + counts.greatest_count <= COUNT_LIMIT
            )
            target_minute = hour if fits and minute != now else minute
            self._merge((key, target_minute), counts)
        # Do not try to merge again at every count what cannot be merged further.
        self._limit = max(self._minutes_limit, 2 * len(self._counts_by_minute))


def _this_minute() -> int:
    """Return the present minute, counted from 1970."""
    return int(time.time() // 60)
