"""States of operations and items, and their transitions. Constraints repeat them."""

from __future__ import annotations

from enum import StrEnum

from apps.poison.states import RedriveOutcome


class Verb(StrEnum):
    """What an operation does. GIVE_BACK: send to the dead-letter queue, as captured."""

    REDRIVE = "redrive"
    DROP = "drop"
    RESTORE = "restore"
    GIVE_BACK = "give_back"


# The verbs of pages and API; only `manage.py give_back` requests the other one.
REQUESTABLE = (Verb.REDRIVE, Verb.DROP, Verb.RESTORE)
SENDS = (Verb.REDRIVE.value, Verb.GIVE_BACK.value)


class OperationState(StrEnum):
    PREVIEW = "preview"
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"


NEXT: dict[OperationState, frozenset[OperationState]] = {
    OperationState.PREVIEW: frozenset({OperationState.QUEUED}),
    OperationState.QUEUED: frozenset({OperationState.RUNNING}),
    # Running again: a new run takes an operation over from one that died.
    OperationState.RUNNING: frozenset({OperationState.RUNNING, OperationState.DONE}),
    OperationState.DONE: frozenset(),
    # Earlier releases cancelled a preview when its actor made another like it.
    OperationState.CANCELLED: frozenset(),
}


def before(state: OperationState) -> list[str]:
    """List the states that can change to this one."""
    return sorted(origin.value for origin, onward in NEXT.items() if state in onward)


CONFIRMED = (
    OperationState.QUEUED.value,
    OperationState.RUNNING.value,
    OperationState.DONE.value,
)
UNFINISHED = (OperationState.QUEUED.value, OperationState.RUNNING.value)
FINISHED = (OperationState.DONE.value, OperationState.CANCELLED.value)


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
    RedriveOutcome.SENDING.value,
    RedriveOutcome.SENT.value,
    RedriveOutcome.CONFIRMED.value,
    RedriveOutcome.RECURRED.value,
    RedriveOutcome.REFUSED.value,
    ItemState.SKIPPED.value,
    RedriveOutcome.UNKNOWN.value,
    ItemState.DROPPED.value,
    ItemState.RESTORED.value,
    RedriveOutcome.MOVED.value,
)
