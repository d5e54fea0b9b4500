"""Rows that cannot be claimed or marked: they are left out, and reported.

A trigger, a rule or a damaged page may be at fault. They stay as they are in the table,
and are tried again after a while.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

MOST_ROWS = 10_000
LEFT_OUT_SECONDS = 600.0
REASON_LIMIT = 1_000
# A row whose claim was lost so often had its marks undone each time, or a new writer.
MOST_MISSES = 3
CHANGED_AGAIN = (
    "each mark finds it changed since its claim: a trigger of the table changes it"
    " again, or another program does"
)


class UnmarkableRows:
    """The rows, with the reason of each, in memory; the oldest of too many go.

    Any thread may ask for them while the sweeper adds some.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[int, float] = {}
        self._unreported: dict[int, str] = {}
        self._misses: dict[int, int] = {}

    def note_marks(self, marked: Iterable[int], missed: Iterable[int]) -> list[int]:
        """Note which outbox rows were marked, and which had changed since their claim.

        Returns those that missed too often; they are returned until they are marked.
        """
        with self._lock:
            for row_id in marked:
                self._misses.pop(row_id, None)
            hopeless = list[int]()
            for row_id in missed:
                self._misses[row_id] = self._misses.pop(row_id, 0) + 1
                if self._misses[row_id] >= MOST_MISSES:
                    hopeless.append(row_id)
            while len(self._misses) > MOST_ROWS:
                del self._misses[next(iter(self._misses))]
            return hopeless

    def add(self, row_id: int, reason: str, *, now: float) -> None:
        """Leave an outbox row out of claims from now on, for this reason."""
        with self._lock:
            self._until.pop(row_id, None)
            self._until[row_id] = now + LEFT_OUT_SECONDS
            self._unreported[row_id] = " ".join(reason.split())[:REASON_LIMIT]
            for rows in (self._until, self._unreported):
                while len(rows) > MOST_ROWS:
                    del rows[next(iter(rows))]

    def left_out(self, now: float) -> list[int]:
        """Return the ids of unmarkable rows that are not claimed now."""
        with self._lock:
            return [row_id for row_id, until in self._until.items() if until > now]

    @property
    def unreported(self) -> dict[int, str]:
        """Return the reasons of unmarkable rows not reported yet, by row id."""
        with self._lock:
            return dict(self._unreported)

    def note_report(self, row_ids: list[int]) -> None:
        """Note that these unmarkable rows were reported."""
        with self._lock:
            for row_id in row_ids:
                self._unreported.pop(row_id, None)
