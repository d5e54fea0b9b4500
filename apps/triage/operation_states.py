"""States of operations and items, and their transitions. Constraints repeat them."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from apps.poison.states import COUNTED


class Verb(StrEnum):
    """What an operation does. GIVE_BACK: send to the dead-letter queue, as captured.

    TRY_NOW and GIVE_UP are for deliveries, which can be restored, too.
    """

    REDRIVE = "redrive"
    DROP = "drop"
    RESTORE = "restore"
    GIVE_BACK = "give_back"
    TRY_NOW = "try_now"
    GIVE_UP = "give_up"


class ItemKindName(StrEnum):
    """What the items of an operation are."""

    POISON = "poison"
    DELIVERY = "delivery"


# The verbs for any messages; those of one topic can be given back to its queue, too.
REQUESTABLE = (Verb.REDRIVE, Verb.DROP, Verb.RESTORE)
SENDS = (Verb.REDRIVE.value, Verb.GIVE_BACK.value)
VERBS: dict[ItemKindName, tuple[Verb, ...]] = {
    ItemKindName.POISON: (*REQUESTABLE, Verb.GIVE_BACK),
    ItemKindName.DELIVERY: (Verb.TRY_NOW, Verb.GIVE_UP, Verb.RESTORE),
}
# What reaches consumers or back ends, so that it can be slowed down.
PACED = frozenset(
    {
        (ItemKindName.POISON, Verb.REDRIVE),
        (ItemKindName.POISON, Verb.GIVE_BACK),
        (ItemKindName.DELIVERY, Verb.TRY_NOW),
        (ItemKindName.DELIVERY, Verb.RESTORE),
    }
)
# These need a reason.
EXPLAINED = (Verb.DROP, Verb.GIVE_UP)


class OperationState(StrEnum):
    """A preview, and what it becomes once it is confirmed.

    QUEUED: no worker has begun. CANCELLING: a worker still has to find out what was
    sent; CANCELLED: it has, and nothing of the operation will be sent any more.
    """

    PREVIEW = "preview"
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    DONE = "done"


class OperationGroup(StrEnum):
    """Which operations a list shows; NEEDS_YOU: a person should look at them."""

    RUNNING = "running"
    NEEDS_YOU = "needs-you"
    DONE = "done"


NEXT: dict[OperationState, frozenset[OperationState]] = {
    OperationState.PREVIEW: frozenset({OperationState.QUEUED}),
    # Done although paused, or queued again: its last messages were just being sent.
    OperationState.QUEUED: frozenset(
        {
            OperationState.RUNNING,
            OperationState.PAUSED,
            OperationState.CANCELLING,
            OperationState.DONE,
        }
    ),
    # Running again: a new run takes an operation over from one that died.
    OperationState.RUNNING: frozenset(
        {
            OperationState.RUNNING,
            OperationState.PAUSED,
            OperationState.CANCELLING,
            OperationState.DONE,
        }
    ),
    OperationState.PAUSED: frozenset(
        {OperationState.QUEUED, OperationState.CANCELLING, OperationState.DONE}
    ),
    OperationState.CANCELLING: frozenset({OperationState.CANCELLED}),
    OperationState.CANCELLED: frozenset(),
    OperationState.DONE: frozenset(),
}


def before(state: OperationState) -> list[str]:
    """List the operation states from which an operation can change to this one."""
    return sorted(origin.value for origin, onward in NEXT.items() if state in onward)


UNFINISHED = (
    OperationState.QUEUED.value,
    OperationState.RUNNING.value,
    OperationState.PAUSED.value,
    OperationState.CANCELLING.value,
)
# A worker has something to do.
ACTIVE = (
    OperationState.QUEUED.value,
    OperationState.RUNNING.value,
    OperationState.CANCELLING.value,
)
FINISHED = (OperationState.CANCELLED.value, OperationState.DONE.value)
CONFIRMED = (*UNFINISHED, *FINISHED)


class ItemState(StrEnum):
    """The standing of an item that no redrive tells: see `RedriveOutcome`.

    DUE: a delivery that was made due, so that it is tried now.
    """

    WAITING = "waiting"
    SKIPPED = "skipped"
    DROPPED = "dropped"
    RESTORED = "restored"
    DUE = "due"
    GIVEN_UP = "given_up"


# After its end, a drop can be undone as a whole for this long.
UNDO_WINDOW = timedelta(days=30)

# Sent, or maybe, and never answered: no standing, but some of those that have one.
SILENT = "silent"

# Which messages of a requeue can be tried again.
RETRIED = ("refused", "recurred", SILENT)

# The standings of items; their counts always add up to the total.
STANDINGS = (ItemState.WAITING.value, *COUNTED)
# What lists of items can be about.
LISTED = (*STANDINGS, SILENT)

# How an operation's items are stored. The release before had their states in them, in a
# table of its own. It leaves alone what has the layout of another kind than poisons,
# whose items are in the table of their kind.
LAYOUT = 2
LAYOUT_OF_OTHER_KINDS = 3
LAYOUTS = (LAYOUT, LAYOUT_OF_OTHER_KINDS)
LAYOUT_OF = {
    ItemKindName.POISON: LAYOUT,
    ItemKindName.DELIVERY: LAYOUT_OF_OTHER_KINDS,
}
LAYOUT_BEFORE = 1
# Its items are being moved: no worker of either release may run it.
LAYOUT_IN_CONVERSION = 0
