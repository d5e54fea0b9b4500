"""Compute an operation's progress, the same for pages, API and command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from apps.poison.states import Outcome
from apps.triage.states import ItemState

# An item in one of these standings still needs work.
PENDING = (ItemState.WAITING, Outcome.SENDING, Outcome.UNKNOWN)


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemTally:
    """The items of an operation; `counts` are by standing and add up to `total`."""

    total: int
    counts: Mapping[str, int]

    @property
    def skipped(self) -> int:
        """Count the skipped items: they are no work, so no progress either."""
        return self.counts[ItemState.SKIPPED]

    @property
    def refused(self) -> int:
        return self.counts[Outcome.REFUSED]

    @property
    def recurred(self) -> int:
        return self.counts[Outcome.RECURRED]

    @property
    def acts_on(self) -> int:
        """Count the items that the operation acts on: all but the skipped ones."""
        return self.total - self.skipped

    @property
    def finished(self) -> int:
        """Count the items that need no more work: done, or refused for good."""
        return self.acts_on - sum(self.counts[standing] for standing in PENDING)

    @property
    def acted(self) -> int:
        """Count the items sent, given back, dropped or restored."""
        return self.finished - self.refused
