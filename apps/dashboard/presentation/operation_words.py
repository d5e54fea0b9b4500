"""The words for what an operation does, and what it acts on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from apps.dashboard.presentation.counts_as_text import count_noun
from apps.triage.models import Operation
from apps.triage.operation_states import ItemKindName, OperationState, Verb

NOUNS: Mapping[str, str] = {
    ItemKindName.POISON: "message",
    ItemKindName.DELIVERY: "delivery",
}
VERBS: Mapping[str, str] = {
    Verb.REDRIVE: "Requeue",
    Verb.DROP: "Drop",
    Verb.RESTORE: "Restore",
    Verb.GIVE_BACK: "Give back",
    Verb.TRY_NOW: "Try {} now",
    Verb.GIVE_UP: "Give up on",
}
PAST_VERBS: Mapping[str, str] = {
    Verb.REDRIVE: "Requeued",
    Verb.DROP: "Dropped",
    Verb.RESTORE: "Restored",
    Verb.GIVE_BACK: "Gave back",
    Verb.TRY_NOW: "Hurried",
    Verb.GIVE_UP: "Gave up on",
}


def deed(operation: Operation, number: int | None = None) -> str:
    """Say what an operation does, and to how many messages or deliveries.

    "Drop 3 messages", or, without a number, "Drop all that match".
    """
    what = "all that match"
    if number is not None:
        what = count_noun(number, NOUNS[operation.kind])
    return verb_with_object(VERBS[operation.verb], what)


def verb_with_object(words: str, what: str) -> str:
    """Join the words of an operation's verb and its object: "Drop" and "3 messages".

    The object may be put inside the words.
    """
    return words.format(what) if "{}" in words else f"{words} {what}"


def verb(name: str) -> str:
    """Return the label of an operation's verb, without an object."""
    return VERBS[name].replace("{} ", "").removesuffix(" on")


def item_noun(operation: Operation) -> str:
    """Return what an operation acts on: message or delivery."""
    return NOUNS[operation.kind]


def paused_number(operations: Sequence[Operation]) -> int:
    """Count the operations of these that are paused."""
    return sum(each.state == OperationState.PAUSED for each in operations)
