"""Quarantined rows whose reports were rejected: they are not reported again for long.

An API key that may not report a topic rejects all its rows, however many these are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from poisonguard.outbox.sweeping import row_quarantine_and_report
from poisonguard.outbox.sweeping.connection import OutboxConnection
from poisonguard.outbox.sweeping.row_quarantine_and_report import QuarantinedRow

REJECTED_SECONDS = 3_600.0
MOST_ROWS = 1_000
LIST_BEHIND = f"""
SELECT row_id FROM {{outbox}} AS entry
WHERE entry.quarantined_at IS NOT NULL AND entry.reported_at IS NULL
  AND entry.row_id > %(last)s AND entry.row_id <> ALL (%(passed_by)s::bigint[])
ORDER BY entry.row_id LIMIT {row_quarantine_and_report.REPORTED_AT_ONCE}
"""  # noqa: S608 - made of constants


class RejectedReports:
    """The rows, in memory; of too many all up to the last one are passed by."""

    def __init__(self, *, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self._until: dict[int, float] = {}
        self._last_row: int | None = None
        self._last_row_until = 0.0

    def add(self, row_id: int) -> None:
        """Leave a quarantined row unreported for an hour, as its report was rejected.

        Rows come in order of numbers.
        """
        until = self._timer() + REJECTED_SECONDS
        self._until[row_id] = until
        if len(self._until) <= MOST_ROWS:
            return
        if self._last_row is None:
            self._last_row_until = until
        self._last_row = row_id
        self._until = {i: end for i, end in self._until.items() if i > row_id}

    def others(self, row_ids: Iterable[int]) -> list[int]:
        """Return the outbox rows whose reports were not rejected lately, in order."""
        self._end()
        last = self._last_row
        return sorted(
            row_id
            for row_id in row_ids
            if row_id not in self._until and (last is None or row_id > last)
        )

    def unreported(self, connection: OutboxConnection) -> list[QuarantinedRow]:
        """Read the first quarantined outbox rows that are to be reported."""
        self._end()
        passed_by = list(self._until)
        if self._last_row is None:
            return row_quarantine_and_report.unreported_rows(connection, passed_by)
        values = {"last": self._last_row, "passed_by": passed_by}
        listed = connection.execute(LIST_BEHIND, values)
        return _read_some(connection, [row_id for (row_id,) in listed])

    def _end(self) -> None:
        """Forget the outbox rows whose reports were rejected an hour ago."""
        now = self._timer()
        self._until = {i: end for i, end in self._until.items() if end > now}
        if now >= self._last_row_until:
            self._last_row = None


def _read_some(
    connection: OutboxConnection, row_ids: Collection[int]
) -> list[QuarantinedRow]:
    """Read quarantined rows one by one, until bodies and headers fill a report."""
    rows, size = list[QuarantinedRow](), 0
    for row_id in row_ids:
        read = row_quarantine_and_report.rows_by_id(connection, [row_id])
        size += sum(len(row.body) for row in read)
        size += sum(len(part) for row in read for pair in row.headers for part in pair)
        if rows and size > row_quarantine_and_report.REPORT_BYTES:
            break
        rows += read
    return rows
