"""Claims the items of an operation that are sent next, a window at a time."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TypeVar

from django.db import transaction

from apps.brokers.services import topics as brokers
from apps.core.errors import Refused
from apps.core.lock import Lock
from apps.core.sql import read_by_index
from apps.poison import services as poison
from apps.triage.errors import LockLost
from apps.triage.models import Operation
from apps.triage.services import item_states, outbound
from apps.triage.services.fencing import fence
from apps.triage.services.outbound import ClaimedWindow
from apps.triage.states import Verb

WINDOW = 200
WINDOW_BYTES = 32 * 1024 * 1024

Clock = Callable[[], datetime]
Key = TypeVar("Key")


class Windows:
    """The windows of one run: what an older epoch left in flight, then the others."""

    def __init__(
        self,
        operation: Operation,
        operation_lock: Lock,
        clock: Clock,
        *,
        size: int = WINDOW,
    ) -> None:
        self.operation = operation
        self.lock = operation_lock
        self.clock = clock
        self.size = size
        self.has_orphans = True
        self.unmarked_topics = brokers.topics_without_headers()

    def claim(self) -> ClaimedWindow:
        """Claim a window; an empty one means that nothing waits any more."""
        if self.lock.lost():
            raise LockLost
        with transaction.atomic():
            read_by_index()
            fence(self.operation)
            redrives = self._take_over_orphans() if self.has_orphans else []
            # No other run leaves redrives in flight while this one holds the lock.
            self.has_orphans = bool(redrives)
            redrives = redrives or self._claim_waiting()
        return outbound.read(redrives) if redrives else ClaimedWindow()

    def _take_over_orphans(self) -> list[uuid.UUID]:
        """Claim a window of redrives that an earlier run left in flight."""
        rows = (
            self.operation.items.in_flight()
            .filter(redrive__epoch__lt=self.operation.epoch)
            .order_by("id")
            .values_list("redrive__id", "poison__size")[: self.size]
        )
        orphans = _fit_in_window(rows)
        if not orphans:
            return []
        own = poison.take_over(redrives=orphans, epoch=self.operation.epoch)
        return [redrive for redrive in orphans if redrive in own]

    def _claim_waiting(self) -> list[uuid.UUID]:
        """Claim the next window with anything to send; skip items with nothing."""
        while True:
            waiting = self.operation.items.waiting().order_by("id")
            rows = list(
                waiting.values_list("poison_id", "poison__size", "id")[: self.size]
            )
            window = set(_fit_in_window((pk, size) for pk, size, _ in rows))
            items = {pk: item for pk, _, item in rows if pk in window}
            if not items:
                return []
            redrives = poison.begin(
                poisons=list(items),
                target=self.operation.target_topic_id,
                queue=self._queue_to_give_back_to(),
                unmarked=self.unmarked_topics,
                epoch=self.operation.epoch,
                now=self.clock(),
            )
            item_states.skip([item for pk, item in items.items() if pk not in redrives])
            if redrives:
                item_states.attach(
                    {items[pk]: redrive for pk, redrive in redrives.items()}
                )
                return [redrives[pk] for pk in items if pk in redrives]

    def _queue_to_give_back_to(self) -> str:
        """Name the dead-letter queue to give back to; "" for any other operation."""
        topic = self.operation.target_topic
        if self.operation.verb != Verb.GIVE_BACK or topic is None:
            return ""
        if not topic.dead_letter_queue:
            raise Refused(f"the topic {topic.name} has no dead-letter queue any more")
        return topic.dead_letter_queue


def _fit_in_window(rows: Iterable[tuple[Key, int]]) -> list[Key]:
    """Return the keys of the first (key, size) rows that fit into WINDOW_BYTES."""
    keys: list[Key] = []
    total = 0
    for key, size in rows:
        total += size
        if keys and total > WINDOW_BYTES:
            break
        keys.append(key)
    return keys
