"""How much a lane takes at once, how often it looks, and how much came of late."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

Timer = Callable[[], float]

LARGEST_BATCH = 500
SMALLEST_BATCH = 10
# A batch that took this long to write was too large for the Postgres of the moment.
SLOW = 2.0

SHORTEST_INTERVAL = 1.0


class BatchSize:
    """Halved when writing is slow, doubled again when it is quick."""

    def __init__(self) -> None:
        self.value = LARGEST_BATCH

    def note(self, seconds: float) -> None:
        if seconds > SLOW:
            self.value = max(SMALLEST_BATCH, self.value // 2)
        elif seconds < SLOW / 4:
            self.value = min(LARGEST_BATCH, self.value * 2)


class Polling:
    """When to look next: at once after a find, else less and less often.

    With a `longest` pause of 0 it is always time to.
    """

    def __init__(self, *, longest: float, timer: Timer) -> None:
        self._longest = longest
        self._timer = timer
        self._interval = 0.0
        self._next = 0.0

    def is_due(self) -> bool:
        return self._timer() >= self._next

    def left(self) -> float:
        """Give the seconds until the next look."""
        return max(0.0, self._next - self._timer())

    def note(self, *, found: bool) -> None:
        if found:
            self._interval = self._next = 0.0
            return
        shortest = min(SHORTEST_INTERVAL, self._longest)
        self._interval = min(max(shortest, self._interval * 2), self._longest)
        # Many lanes that found nothing together must not look together for ever.
        jitter = random.uniform(0.75, 1.0)  # noqa: S311
        self._next = self._timer() + self._interval * jitter


class Rate:
    """So many in the last minute."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._noted: deque[tuple[float, int]] = deque()

    def add(self, number: int) -> None:
        if number > 0:
            self._noted.append((self._timer(), number))

    def per_minute(self) -> float:
        while self._noted and self._noted[0][0] <= self._timer() - 60:
            self._noted.popleft()
        return float(sum(number for _, number in self._noted))
