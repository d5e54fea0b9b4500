"""When single skips expire."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import count

from poisonguard.contract import Skip


class Expiries:
    """The times at which skips expire; those that `is_kept` denies are ignored."""

    def __init__(self, is_kept: Callable[[Skip], bool]) -> None:
        self._is_kept = is_kept
        self._heap: list[tuple[datetime, int, Skip]] = []
        self._tie = count()

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def first(self) -> datetime | None:
        """Return the time at which the next loose skip expires."""
        while self._heap and not self._is_kept(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def add(self, skip: Skip, *, kept_count: int) -> None:
        """Add the expiry of a skip, if any, to the heap of expiries.

        At more than about twice `kept_count`, how many loose and own skips there are,
        drop the expiries of removed skips.
        """
        if skip.expires_at is None:
            return
        heapq.heappush(self._heap, (skip.expires_at, next(self._tie), skip))
        # Removed skips stay in the heap until they expire, or until there are many.
        if len(self._heap) > 2 * kept_count + 1_000:
            self._heap = [each for each in self._heap if self._is_kept(each[2])]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        """Forget all expiry times of skips."""
        self._heap.clear()

    def take_expired(self, now: datetime) -> Iterator[Skip]:
        """Yield the skips that have expired, each once."""
        while self._heap and self._heap[0][0] <= now:
            _, _, skip = heapq.heappop(self._heap)
            if self._is_kept(skip):
                yield skip
