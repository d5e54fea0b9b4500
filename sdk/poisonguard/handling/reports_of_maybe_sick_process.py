"""Suspected poisons: kept until this process proves healthy by handling a message.

They were reported with `suspected`: Poisonweb has them, and no other consumer skips
them. Once this process handles a message, the same reports go out without it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import replace

from poisonguard.contract import FailureReport

log = logging.getLogger(__name__)

BYTES_LIMIT = 64 * 1024 * 1024


class SuspectedReports:
    """The suspected reports of one process, the oldest first."""

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget suspected reports, the parent's, in a forked child."""
        self._lock = threading.Lock()
        self._reports: deque[tuple[FailureReport, int]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._reports)

    def add(self, report: FailureReport, *, handled: int) -> None:
        """Keep a suspected report; `handled` counts the messages handled so far."""
        with self._lock:
            if self._bytes + len(report.body) > BYTES_LIMIT:
                # Poisonweb shows it as suspected until a person looks at it.
                log.warning("%r stays suspected: too many are kept", report.bookmark)
                return
            self._bytes += len(report.body)
            self._reports.append((report, handled))

    def first(self, *, handled: int) -> FailureReport | None:
        """Return the oldest suspected report, as certain; None if there is no report.

        None, too, until a message was handled after the report was added.
        """
        with self._lock:
            if not self._reports or self._reports[0][1] >= handled:
                return None
            return replace(self._reports[0][0], suspected=False)

    def remove_oldest(self) -> None:
        """Remove the oldest suspected report, which was sent."""
        with self._lock:
            report, _ = self._reports.popleft()
            self._bytes -= len(report.body)
