"""How far an operation has come: one arithmetic for pages, API and command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from apps.poison.states import Outcome
from apps.triage.states import ItemState

# Whatever else its standing says, an item in one of these is still to be done.
PENDING = (ItemState.WAITING, Outcome.SENDING, Outcome.UNKNOWN)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """The items of an operation; `counts` are by standing and add up to `total`."""

    total: int
    counts: Mapping[str, int]

    @property
    def skipped(self) -> int:
        """Count what was passed over: it is no work, so no progress either."""
        return self.counts[ItemState.SKIPPED]

    @property
    def refused(self) -> int:
        return self.counts[Outcome.REFUSED]

    @property
    def recurred(self) -> int:
        return self.counts[Outcome.RECURRED]

    @property
    def acts_on(self) -> int:
        """Count what the operation is to act on: all that it does not pass over."""
        return self.total - self.skipped

    @property
    def finished(self) -> int:
        """Count what needs no more work: done, or refused for good."""
        return self.acts_on - sum(self.counts[word] for word in PENDING)

    @property
    def acted(self) -> int:
        """Count what was done: sent, given back, dropped or restored."""
        return self.finished - self.refused
