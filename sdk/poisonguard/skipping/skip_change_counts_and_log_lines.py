"""Count and log the changes of a skip list."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from itertools import chain

from poisonguard.contract import Skip
from poisonguard.skipping.skip_table import SkipTable

log = logging.getLogger(__name__)


class SkipChanges:
    """How many skips were added, removed and applied; one log line for each.

    While it is not `is_loaded`, it logs no added skips: a first snapshot may hold
    100,000 of them, and the stream logs one line for it.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.is_loaded = False

    def applied(self, skip: Skip) -> None:
        """Log that a skip was applied to a message."""
        log.info("skipped a message: %s", _describe(skip))

    def added(self, skip: Skip) -> None:
        """Count a skip that this guard's list got; log it once the list was loaded."""
        self.counts["added"] += 1
        if self.is_loaded:
            log.info("a skip was added: %s", _describe(skip))

    def removed(self, skip: Skip, because: str) -> None:
        """Count and log a removed skip, with the reason."""
        self.counts["removed"] += 1
        log.info("a skip was removed (%s): %s", because, _describe(skip))

    def replaced(
        self, before: SkipTable, loose: Mapping[int, Skip], table: SkipTable
    ) -> None:
        """Count and log what a new skip table changes in the old one and loose ones."""
        if not self.is_loaded and not len(before) and not loose:
            self.counts["added"] += len(table)
            return
        for row, number in table.ids():
            there = before.row(number)
            if number in loose or there is None:
                self._count_and_log(loose.get(number), table.skip(row))
            elif not table.is_same(row, before, there):
                self._count_and_log(before.skip(there), table.skip(row))
        removed_rows = [
            row for row, number in before.ids() if table.row(number) is None
        ]
        for skip in chain(map(before.skip, removed_rows), loose.values()):
            if skip.id is not None and table.row(skip.id) is None:
                self.removed(skip, "removed")

    def _count_and_log(self, was: Skip | None, skip: Skip) -> None:
        """Count and log a skip that a new table adds or changes."""
        if was == skip:
            return
        self.added(skip)
        if was is not None:
            self.removed(was, "changed")


def _describe(skip: Skip) -> str:
    """Describe a skip in one line, for the log."""
    number = "of our own" if skip.id is None else str(skip.id)
    return (
        f"{number}, {skip.topic}, {skip.kind} {skip.value[:200]!r}, "
        f"by {skip.by or 'this guard'}: {skip.reason[:200]!r}"
    )
