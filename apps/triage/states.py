"""States of operations and items, and their transitions. Constraints repeat them."""

from __future__ import annotations

from enum import StrEnum

from apps.poison.states import Outcome


class Verb(StrEnum):
    """What an operation does. GIVE_BACK: send to the dead-letter queue, as captured."""

    REDRIVE = "redrive"
    DROP = "drop"
    RESTORE = "restore"
    GIVE_BACK = "give_back"


# The verbs of pages and API; only `manage.py give_back` requests the other one.
REQUESTABLE = (Verb.REDRIVE, Verb.DROP, Verb.RESTORE)
SENDS = (Verb.REDRIVE.value, Verb.GIVE_BACK.value)


class State(StrEnum):
    PREVIEW = "preview"
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"


NEXT: dict[State, frozenset[State]] = {
    State.PREVIEW: frozenset({State.QUEUED}),
    State.QUEUED: frozenset({State.RUNNING}),
    # Running again: a new run takes an operation over from one that died.
    State.RUNNING: frozenset({State.RUNNING, State.DONE}),
    State.DONE: frozenset(),
    # Earlier releases cancelled a preview when its actor made another like it.
    State.CANCELLED: frozenset(),
}


def before(state: State) -> list[str]:
    """List the states that can change to this one."""
    return sorted(origin.value for origin, onward in NEXT.items() if state in onward)


CONFIRMED = (State.QUEUED.value, State.RUNNING.value, State.DONE.value)
UNFINISHED = (State.QUEUED.value, State.RUNNING.value)
FINISHED = (State.DONE.value, State.CANCELLED.value)


class ItemState(StrEnum):
    """An item's own states; a `claimed` item shows its redrive's outcome instead."""

    WAITING = "waiting"
    CLAIMED = "claimed"
    SKIPPED = "skipped"
    DROPPED = "dropped"
    RESTORED = "restored"


# The standings that counts are kept by; they always add up to the total.
COUNTED = (
    ItemState.WAITING.value,
    Outcome.SENDING.value,
    Outcome.SENT.value,
    Outcome.CONFIRMED.value,
    Outcome.RECURRED.value,
    Outcome.REFUSED.value,
    ItemState.SKIPPED.value,
    Outcome.UNKNOWN.value,
    ItemState.DROPPED.value,
    ItemState.RESTORED.value,
    Outcome.MOVED.value,
)
