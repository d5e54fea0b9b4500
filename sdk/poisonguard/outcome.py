"""What became of one message."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """What became of a message; all but `RELEASE` mean: settle it."""

    HANDLED = "handled"  # the handler returned
    SKIPPED = "skipped"  # known poison, or a redriven message seen before
    POISONED = "poisoned"  # given up on, and Poisonweb or the spool has it for good
    RELEASE = "release"  # give it back to the broker, unsettled

    @property
    def settles(self) -> bool:
        """Tell whether the consumer is done with the message."""
        return self is not Outcome.RELEASE

    @property
    def duty(self) -> str:
        """Say what the consumer owes the broker now, where the guard does not do it."""
        return _RETURN if self is Outcome.RELEASE else "settle it"


_RETURN = (
    "see that it comes again: nack it with a delay, let its visibility end, requeue "
    "it, or seek back to it; commit nothing behind it"
)
