"""Counts of handled messages and their durations, without a lock.

Each slot has its own count and one message at a time, so two threads never write the
same count. The counts only grow; `take_new` remembers what it has returned.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

# The duration of one in so many handled messages is measured; a power of 2.
SAMPLED = 64
LAST_BUCKET = 63
# A few minutes of a fast topic, in two megabytes.
MOST_RECENT = 65_536


class Slot:
    """Room for one message at a time, with the count of those handled in it."""

    __slots__ = ("handled", "place")

    def __init__(self, place: int) -> None:
        self.place = place  # in the journal
        self.handled = 0


class ProcessCounts:
    """The counts of one process."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        # Appending to a deque is atomic in Python: no sample is lost to a race.
        self.seconds: deque[float] = deque()
        # The numbers of the messages that were handled last.
        self.recent: deque[int] = deque(maxlen=MOST_RECENT)
        self._reported_total = 0

    def reset_after_fork(self) -> None:
        """Count handled messages from 0 in a forked child, without the parent's."""
        for slot in self._slots:
            slot.handled = 0
        self.seconds.clear()
        self.recent.clear()
        self._reported_total = 0

    @property
    def total(self) -> int:
        """Return how many messages this process has handled."""
        return sum(slot.handled for slot in self._slots)

    def take_new(self) -> tuple[int, dict[int, int]]:
        """Return the count and durations of messages handled since the last call."""
        total = self.total
        handled, self._reported_total = total - self._reported_total, total
        return handled, self._take_durations()

    def _take_durations(self) -> dict[int, int]:
        """Take all measured durations of messages; return their number by bucket."""
        durations: Counter[int] = Counter()
        for _ in range(len(self.seconds)):
            durations[bucket(self.seconds.popleft())] += 1
        return dict(durations)


def bucket(seconds: float) -> int:
    """Return b for a duration from 2^b up to 2^(b+1) milliseconds, 0 for less."""
    milliseconds = int(seconds * 1000)
    return min(max(milliseconds.bit_length() - 1, 0), LAST_BUCKET)
