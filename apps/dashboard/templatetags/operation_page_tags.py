"""Template tags and filters of the pages of operations."""

from __future__ import annotations

from django import template

from apps.dashboard.presentation.counts_as_text import count_noun
from apps.dashboard.presentation.operation_words import (
    NOUNS,
    PAST_VERBS,
    VERBS,
    deed,
    item_noun,
    paused_number,
    verb,
    verb_with_object,
)
from apps.dashboard.presentation.state_pills import PILLS
from apps.dashboard.selectors.triage_operations import OperationStatus, label_in

register = template.Library()
register.filter(item_noun)
register.filter(label_in)
register.filter(paused_number)
register.filter(verb)
register.simple_tag(deed)


@register.filter
def state_in_words(status: OperationStatus) -> str:
    """Describe an operation's state, and how many messages came back, in plain text.

    Without a pill: "partly refused"; "done, 3 came back".
    """
    label = PILLS[status.state][0].lower()
    return f"{label}, {status.also}" if status.also else label


@register.filter
def operation_label(row: OperationStatus) -> str:
    """Describe an operation by what it will do, or, once finished, by what it did.

    A large undo has no number until a worker has selected its messages.
    """
    verb_name = row.operation.verb
    if row.operation.undo_of_id and not row.operation.taken:
        return f"{VERBS[verb_name]} what operation {row.operation.undo_of_id} dropped"
    words = VERBS if row.is_running else PAST_VERBS
    return verb_with_object(
        words[verb_name], count_noun(row.messages, NOUNS[row.operation.kind])
    )
