"""States and transitions of poisons and redrives; constraints enforce the states."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

SILENT_AFTER = timedelta(minutes=10)


def silent_before(now: datetime) -> datetime:
    """Return the moment before which an unanswered redrive counts as silent."""
    return now - SILENT_AFTER


def silent_from(sent_at: datetime) -> datetime:
    """Return the moment from which a redrive of then is silent if it is unanswered."""
    return sent_at + SILENT_AFTER


class PoisonState(StrEnum):
    OPEN = "open"
    REDRIVING = "redriving"
    REDRIVEN = "redriven"
    CONFIRMED = "confirmed"
    MOVED = "moved"
    DROPPED = "dropped"


NEXT: dict[PoisonState, frozenset[PoisonState]] = {
    # It is open while it is sent. A consumer may answer before the broker has.
    PoisonState.OPEN: frozenset(
        {
            PoisonState.REDRIVEN,
            PoisonState.CONFIRMED,
            PoisonState.MOVED,
            PoisonState.DROPPED,
        }
    ),
    # Only the release before writes it.
    PoisonState.REDRIVING: frozenset(
        {
            PoisonState.REDRIVEN,
            PoisonState.OPEN,
            PoisonState.CONFIRMED,
            PoisonState.MOVED,
        }
    ),
    # Again, or elsewhere: a silent one may be sent once more.
    PoisonState.REDRIVEN: frozenset(
        {
            PoisonState.REDRIVEN,
            PoisonState.CONFIRMED,
            PoisonState.OPEN,
            PoisonState.MOVED,
            PoisonState.DROPPED,
        }
    ),
    PoisonState.CONFIRMED: frozenset({PoisonState.OPEN}),
    PoisonState.MOVED: frozenset({PoisonState.OPEN}),
    PoisonState.DROPPED: frozenset({PoisonState.OPEN}),
}


def before(state: PoisonState) -> list[str]:
    """List the states from which a poison can reach this one."""
    return sorted(origin.value for origin, onward in NEXT.items() if state in onward)


# Only a person opens what a person dropped.
REOPENED_BY_FAILURE = sorted(
    set(before(PoisonState.OPEN)) - {PoisonState.DROPPED.value}
)


class DisplayState(StrEnum):
    """The four states that pages and `is:` use."""

    OPEN = "open"
    SENT = "sent"
    HANDLED = "handled"
    DROPPED = "dropped"


DISPLAY_STATES: dict[PoisonState, DisplayState] = {
    PoisonState.OPEN: DisplayState.OPEN,
    PoisonState.REDRIVING: DisplayState.SENT,
    PoisonState.REDRIVEN: DisplayState.SENT,
    PoisonState.MOVED: DisplayState.SENT,
    PoisonState.CONFIRMED: DisplayState.HANDLED,
    PoisonState.DROPPED: DisplayState.DROPPED,
}


def states_displayed_as(label: DisplayState) -> list[str]:
    """List the states of poisons that are displayed with this label."""
    return sorted(
        state.value for state in PoisonState if DISPLAY_STATES[state] is label
    )


class RedriveOutcome(StrEnum):
    """The outcome of one redrive, as far as it is known."""

    SENDING = "sending"
    UNKNOWN = "unknown"
    SENT = "sent"
    MOVED = "moved"
    CONFIRMED = "confirmed"
    RECURRED = "recurred"
    REFUSED = "refused"


# The broker has not answered yet: it may or may not have the message.
IN_FLIGHT = (RedriveOutcome.SENDING.value, RedriveOutcome.UNKNOWN.value)
NEXT_OUTCOME: dict[RedriveOutcome, frozenset[RedriveOutcome]] = {
    RedriveOutcome.SENDING: frozenset(RedriveOutcome) - {RedriveOutcome.SENDING},
    RedriveOutcome.UNKNOWN: frozenset(RedriveOutcome) - {RedriveOutcome.UNKNOWN},
    RedriveOutcome.SENT: frozenset({RedriveOutcome.CONFIRMED, RedriveOutcome.RECURRED}),
    RedriveOutcome.MOVED: frozenset({RedriveOutcome.RECURRED}),
    RedriveOutcome.CONFIRMED: frozenset({RedriveOutcome.RECURRED}),
    RedriveOutcome.RECURRED: frozenset(),
    RedriveOutcome.REFUSED: frozenset(),
}


class WindowState(StrEnum):
    """WAITING: not claimed, or returned unsent. SENDING: claimed by its `run`."""

    WAITING = "waiting"
    SENDING = "sending"
    DONE = "done"


# The standings that a window counts its items by. What none of them has is waiting.
COUNTED = (
    RedriveOutcome.SENDING.value,
    RedriveOutcome.SENT.value,
    RedriveOutcome.CONFIRMED.value,
    RedriveOutcome.RECURRED.value,
    RedriveOutcome.REFUSED.value,
    "skipped",
    RedriveOutcome.UNKNOWN.value,
    "dropped",
    "restored",
    RedriveOutcome.MOVED.value,
    "due",
    "given_up",
)

# How pages name the outcome of a send that was given back to a dead-letter queue.
GIVEN_BACK = {
    RedriveOutcome.MOVED.value: "given back",
    RedriveOutcome.RECURRED.value: "captured again",
}


def outcomes_before(outcome: RedriveOutcome) -> list[str]:
    """List the outcomes of a redrive that this one can replace."""
    return sorted(o.value for o, onward in NEXT_OUTCOME.items() if outcome in onward)


class Because(StrEnum):
    """Why a skip ended.

    A person removed it, it expired, every position passed it, another consumer handled
    its message, or the consumer that made it paused and may itself be at fault.
    """

    REMOVED = "removed"
    EXPIRED = "expired"
    PASSED = "passed"
    HANDLED = "handled"
    DOUBTED = "doubted"
