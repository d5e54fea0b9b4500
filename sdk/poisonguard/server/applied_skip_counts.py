"""How often each skip was applied in this process, until the server counts it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from uuid import uuid4

from poisonguard.server.fixed_interval import RepeatInterval
from poisonguard.server.report_request_and_answers import Sender

BATCH = 500
EVERY = 5.0


@dataclass(slots=True)
class _Applied:
    times: int = 0
    handled: bool = False
    last_at: str = ""


class AppliedCounts:
    """Count how often each skip was applied, or that its message was handled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, str, str], _Applied] = {}
        self._batch: tuple[dict[str, object], ...] = ()
        self._interval = RepeatInterval(EVERY)

    def count(
        self,
        *,
        skip: int,
        consumer_group: str,
        client_name: str,
        times: int,
        handled: bool = False,
    ) -> None:
        """Count uses of a skip, or that its message was `handled` all the same.

        The next batch of skip counts has it.
        """
        with self._lock:
            count = self._counts.setdefault(
                (skip, consumer_group, client_name), _Applied()
            )
            count.times += times
            count.handled |= handled
            count.last_at = datetime.fromtimestamp(time.time(), UTC).isoformat()

    @property
    def waiting(self) -> int:
        """Return how many counts of applied skips the server has yet to accept."""
        with self._lock:
            return len(self._batch) + len(self._counts)

    def send(self, sender: Sender, *, everything: bool) -> None:
        """Send all counts of applied skips, if they are due or `everything` is."""
        if not self._interval.restart_if_due(early=everything):
            return
        while batch := self._next_batch():
            sender.send("applied", batch)
            with self._lock:
                self._batch = ()

    def _next_batch(self) -> tuple[dict[str, object], ...]:
        """Return the same batch of skip counts until the server has accepted it."""
        with self._lock:
            if not self._batch:
                keys = list(islice(self._counts, BATCH))
                self._batch = tuple(_to_wire(k, self._counts.pop(k)) for k in keys)
            return self._batch


def _to_wire(key: tuple[int, str, str], count: _Applied) -> dict[str, object]:
    """Return a skip count, a member of POST /skips/applied, with a `report` id."""
    skip, consumer_group, client_name = key
    handled = {"handled": True} if count.handled else {}
    return {
        "skip": skip,
        "consumer_group": consumer_group,
        "client_name": client_name,
        "count": count.times,
        "last_at": count.last_at,
        "report": str(uuid4()),
        **handled,
    }
