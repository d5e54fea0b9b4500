"""Sets of whole numbers, stored as runs: a million in a row cost one run."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Run = tuple[int, int]  # from the first to the last, both inclusive


class Ranges:
    """A set of numbers, kept as runs that neither overlap nor touch."""

    __slots__ = ("_first", "_last")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._first: list[int] = []
        self._last: list[int] = []
        for first, last in runs:
            self.add(first, last)

    def add(self, first: int, last: int) -> None:
        """Add the whole numbers from `first` to `last`; merge with existing runs."""
        start = bisect_left(self._last, first - 1)
        end = bisect_right(self._first, last + 1)
        if start < end:
            first = min(first, self._first[start])
            last = max(last, self._last[end - 1])
        self._first[start:end] = [first]
        self._last[start:end] = [last]

    def around(self, others: Ranges) -> Iterator[Run]:
        """Yield, in order, whole runs of this set that overlap one of the other."""
        end = 0
        for first, last in others:
            start = max(end, bisect_left(self._last, first))
            end = max(start, bisect_right(self._first, last))
            yield from zip(self._first[start:end], self._last[start:end], strict=True)

    @property
    def top(self) -> int:
        """Return the greatest number of all runs, or -1."""
        return self._last[-1] if self._last else -1

    def __contains__(self, number: int) -> bool:
        place = bisect_left(self._last, number)
        return place < len(self._last) and self._first[place] <= number

    def __iter__(self) -> Iterator[Run]:
        return zip(self._first, self._last, strict=True)

    def __len__(self) -> int:
        """Return how many separate runs of numbers there are."""
        return len(self._first)

    def __repr__(self) -> str:
        return f"Ranges({list(self)})"
