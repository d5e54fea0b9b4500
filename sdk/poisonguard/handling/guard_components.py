"""The components of one guard."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Never

from poisonguard.handling.circuit_breaker import Breaker
from poisonguard.handling.concurrency_slots_and_suspect_isolation import Gate, Slots
from poisonguard.handling.handled_counts_and_durations import ProcessCounts
from poisonguard.handling.released_messages_to_retry import ReleasedMessages
from poisonguard.handling.reports_of_maybe_sick_process import (
    SuspectedReports,
)
from poisonguard.journal.failed_attempts_store import Attempts
from poisonguard.journal.in_flight_journal import Journal
from poisonguard.outcome import Outcome
from poisonguard.policy import RetryPolicy
from poisonguard.processes.signal_safe_event import SignalSafeEvent
from poisonguard.readers import Reader
from poisonguard.server.counts_by_minute import CounterKey
from poisonguard.server.report_sending import Reporter
from poisonguard.settings import Settings
from poisonguard.skipping.skip_list import SkipList


@dataclass(kw_only=True, slots=True)
class GuardComponents:
    """The components of one guard, shared by both paths."""

    settings: Settings
    policy: RetryPolicy
    reader: Reader
    journal: Journal
    attempts: Attempts
    skips: SkipList
    reporter: Reporter
    breaker: Breaker
    counts: ProcessCounts
    slots: Slots
    gate: Gate
    suspected_reports: SuspectedReports
    released_messages: ReleasedMessages
    keep_alive: Callable[[Any], object] | None
    redeliver: Callable[[Any, float], object] | None
    settle: Callable[[Any, Outcome], object] | None
    clock: Callable[[], datetime]
    server_clock: Callable[[], datetime]
    host: str
    leaving: SignalSafeEvent  # this process was told to stop: wait for nothing
    closed: threading.Event  # the guard takes no more messages
    end_process: Callable[[object], Never]

    @property
    def counter_key(self) -> CounterKey:
        """Return the counters' key for this guard's messages."""
        return CounterKey(
            topic=self.settings.topic,
            consumer_group=self.settings.consumer_group,
            client_name=self.settings.client_name,
        )
