"""States and transitions of poisons and redrives; constraints enforce the states."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

SILENT_AFTER = timedelta(minutes=10)


def silent_before(now: datetime) -> datetime:
    """Return the moment before which an unanswered redrive counts as silent."""
    return now - SILENT_AFTER


class State(StrEnum):
    OPEN = "open"
    REDRIVING = "redriving"
    REDRIVEN = "redriven"
    CONFIRMED = "confirmed"
    MOVED = "moved"
    DROPPED = "dropped"


NEXT: dict[State, frozenset[State]] = {
    State.OPEN: frozenset({State.REDRIVING, State.DROPPED}),
    # A consumer may answer before we have recorded the send.
    State.REDRIVING: frozenset(
        {State.REDRIVEN, State.OPEN, State.CONFIRMED, State.MOVED}
    ),
    State.REDRIVEN: frozenset(
        {State.CONFIRMED, State.OPEN, State.REDRIVING, State.DROPPED}
    ),
    State.CONFIRMED: frozenset({State.OPEN}),
    State.MOVED: frozenset({State.OPEN}),
    State.DROPPED: frozenset({State.OPEN}),
}


def before(state: State) -> list[str]:
    """List the states from which this one can be reached."""
    return sorted(origin.value for origin, onward in NEXT.items() if state in onward)


# Only a person opens what a person dropped.
REOPENED_BY_FAILURE = sorted(set(before(State.OPEN)) - {State.DROPPED.value})


class DisplayState(StrEnum):
    """The four states that pages and `is:` use."""

    OPEN = "open"
    SENT = "sent"
    HANDLED = "handled"
    DROPPED = "dropped"


DISPLAY_STATES: dict[State, DisplayState] = {
    State.OPEN: DisplayState.OPEN,
    State.REDRIVING: DisplayState.SENT,
    State.REDRIVEN: DisplayState.SENT,
    State.MOVED: DisplayState.SENT,
    State.CONFIRMED: DisplayState.HANDLED,
    State.DROPPED: DisplayState.DROPPED,
}


def states_displayed_as(label: DisplayState) -> list[str]:
    """List the states that are displayed with this label."""
    return sorted(state.value for state in State if DISPLAY_STATES[state] is label)


class Outcome(StrEnum):
    """The outcome of one redrive, as far as it is known."""

    SENDING = "sending"
    UNKNOWN = "unknown"
    SENT = "sent"
    MOVED = "moved"
    CONFIRMED = "confirmed"
    RECURRED = "recurred"
    REFUSED = "refused"


# The broker has not answered yet: it may or may not have the message.
IN_FLIGHT = (Outcome.SENDING.value, Outcome.UNKNOWN.value)
NEXT_OUTCOME: dict[Outcome, frozenset[Outcome]] = {
    Outcome.SENDING: frozenset(Outcome) - {Outcome.SENDING},
    Outcome.UNKNOWN: frozenset(Outcome) - {Outcome.UNKNOWN},
    Outcome.SENT: frozenset({Outcome.CONFIRMED, Outcome.RECURRED}),
    Outcome.MOVED: frozenset({Outcome.RECURRED}),
    Outcome.CONFIRMED: frozenset({Outcome.RECURRED}),
    Outcome.RECURRED: frozenset(),
    Outcome.REFUSED: frozenset(),
}


# How pages name the outcome of a send that was given back to a dead-letter queue.
GIVEN_BACK = {
    Outcome.MOVED.value: "given back",
    Outcome.RECURRED.value: "captured again",
}


def outcomes_before(outcome: Outcome) -> list[str]:
    """List the outcomes that this one can replace."""
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
