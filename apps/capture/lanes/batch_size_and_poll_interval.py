"""The batch size, polling interval and rate of a lane."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

Timer = Callable[[], float]

LARGEST_BATCH = 500
SMALLEST_BATCH = 10
# A batch that took longer to write was too large for Postgres at that moment.
SLOW = 2.0

SHORTEST_INTERVAL = 1.0


class BatchSize:
    """The size of the next batch: halved after a slow one, doubled after a fast one."""

    def __init__(self) -> None:
        self.value = LARGEST_BATCH

    def adjust(self, seconds: float) -> None:
        """Halve the size of a batch of letters if it was slow, double it if fast."""
        if seconds > SLOW:
            self.value = max(SMALLEST_BATCH, self.value // 2)
        elif seconds < SLOW / 4:
            self.value = min(LARGEST_BATCH, self.value * 2)


class Polling:
    """When to poll next: at once while the queue is active, else less and less often.

    With a `longest` interval of 0, polling is always due.
    """

    def __init__(self, *, longest: float, timer: Timer) -> None:
        self._longest = longest
        self._timer = timer
        self._interval = 0.0
        self._next = 0.0

    def is_due(self) -> bool:
        """Tell whether to read or poll the topic's queue now."""
        return self._timer() >= self._next

    def seconds_left(self) -> float:
        """Return the seconds until the topic's queue is to be read or polled again."""
        return max(0.0, self._next - self._timer())

    def adjust(self, *, is_active: bool) -> None:
        """Plan the next poll of a queue: at once if it is active, else ever later."""
        if is_active:
            self._interval = self._next = 0.0
            return
        shortest = min(SHORTEST_INTERVAL, self._longest)
        self._interval = min(max(shortest, self._interval * 2), self._longest)
        # Without jitter, lanes that were idle together would always poll together.
        jitter = random.uniform(0.75, 1.0)  # noqa: S311
        self._next = self._timer() + self._interval * jitter


class LaneRate:
    """The number of letters in the last minute."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._counts: deque[tuple[float, int]] = deque()

    def add(self, number: int) -> None:
        """Count dead letters that came now, for the rate per minute."""
        if number > 0:
            self._counts.append((self._timer(), number))

    def per_minute(self) -> float:
        """Add up the last minute's dead letters; forget older counts."""
        while self._counts and self._counts[0][0] <= self._timer() - 60:
            self._counts.popleft()
        return float(sum(number for _, number in self._counts))
