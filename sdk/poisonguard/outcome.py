"""The outcome of handling one message."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """The outcome of a message; after all but `RELEASE`, settle it."""

    HANDLED = "handled"  # the handler returned
    SKIPPED = "skipped"  # known poison, or a redriven message seen before
    POISONED = "poisoned"  # given up, and Poisonweb or the spool has it durably
    RELEASE = "release"  # give it back to the broker, unsettled

    @property
    def settles(self) -> bool:
        """Tell whether the consumer is done with the message."""
        return self is not Outcome.RELEASE

    @property
    def duty(self) -> str:
        """Return words for what the consumer must do at the broker by itself."""
        return _RETURN if self is Outcome.RELEASE else "settle it"


_RETURN = (
    "see that it comes again: nack it with a delay, let its visibility end, requeue "
    "it, or seek back to it; commit nothing behind it"
)
