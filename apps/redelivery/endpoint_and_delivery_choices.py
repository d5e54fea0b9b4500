"""The words of redelivery: modes, plans, ends, and the states of a delivery."""

from __future__ import annotations

from enum import StrEnum


class CallMode(StrEnum):
    """How an endpoint takes a request.

    SYNC_THEN_RETRY: the first try answers the caller; a failed one is stored. ASYNC:
    the request is stored, and tried after the caller has its answer.
    """

    SYNC_THEN_RETRY = "sync-then-retry"
    ASYNC = "async"


class IntervalGrowth(StrEnum):
    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class Jitter(StrEnum):
    """How the wait before a retry is spread.

    The three are those of "Exponential Backoff And Jitter" (Marc Brooker, 2015).
    """

    NONE = "none"
    FULL = "full"
    EQUAL = "equal"
    DECORRELATED = "decorrelated"


class Repeatable(StrEnum):
    """Which requests may be sent again although the first may have arrived.

    BY_METHOD: those whose method is idempotent (RFC 9110 9.2.2), and those that the
    caller gave an Idempotency-Key.
    """

    BY_METHOD = "by-method"
    ALWAYS = "always"
    NEVER = "never"


class AtEnd(StrEnum):
    """What becomes of a delivery that is not tried again."""

    TRIAGE = "triage"
    DROP = "drop"
    FORWARD = "forward"


class DeliveryState(StrEnum):
    """WAITING: for its next try. TRYING: a sender owns it.

    FORWARDING: it is not tried again, and goes to a topic. The others are its ends.
    """

    WAITING = "waiting"
    TRYING = "trying"
    FORWARDING = "forwarding"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"
    DROPPED = "dropped"
    FORWARDED = "forwarded"


NEXT: dict[DeliveryState, frozenset[DeliveryState]] = {
    # A person may end it while it waits.
    DeliveryState.WAITING: frozenset(
        {
            DeliveryState.TRYING,
            DeliveryState.FORWARDING,
            DeliveryState.GIVEN_UP,
            DeliveryState.DROPPED,
            DeliveryState.FORWARDED,
        }
    ),
    DeliveryState.TRYING: frozenset(
        {
            DeliveryState.WAITING,
            DeliveryState.DELIVERED,
            DeliveryState.FORWARDING,
            DeliveryState.GIVEN_UP,
            DeliveryState.DROPPED,
            DeliveryState.FORWARDED,
        }
    ),
    # The topic's broker may refuse it.
    DeliveryState.FORWARDING: frozenset(
        {DeliveryState.FORWARDED, DeliveryState.GIVEN_UP}
    ),
    DeliveryState.DELIVERED: frozenset(),
    DeliveryState.GIVEN_UP: frozenset(),
    # A person restores it.
    DeliveryState.DROPPED: frozenset({DeliveryState.WAITING}),
    DeliveryState.FORWARDED: frozenset(),
}
UNFINISHED = (
    DeliveryState.WAITING.value,
    DeliveryState.TRYING.value,
    DeliveryState.FORWARDING.value,
)
FINISHED = tuple(state.value for state in DeliveryState if state not in UNFINISHED)


def before(state: DeliveryState) -> list[str]:
    """List the delivery states that can change to this one."""
    return sorted(origin.value for origin, onward in NEXT.items() if state in onward)


class AttemptOutcome(StrEnum):
    """TRYING: not known yet. UNKNOWN: the back end may have processed the request."""

    TRYING = "trying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
