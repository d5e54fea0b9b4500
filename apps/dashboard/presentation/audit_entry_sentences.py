"""Describe each audit entry in a sentence: who did what, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from apps.audit.models import Entry
from apps.audit.services import Action
from apps.dashboard.presentation import (
    audit_sentences_of_consumers,
    audit_sentences_of_operations,
    audit_sentences_of_people,
    audit_sentences_of_settings,
)
from apps.dashboard.presentation.audit_entry_facts import Facts, Sentence, shorten

LONGEST_REASON: Final = 300

SENTENCES: Final[Mapping[str, Sentence]] = {
    **audit_sentences_of_operations.SENTENCES,
    **audit_sentences_of_consumers.SENTENCES,
    **audit_sentences_of_people.SENTENCES,
    **audit_sentences_of_settings.SENTENCES,
}


def sentence(entry: Entry) -> str:
    """Describe an audit entry and its reason in plain text; the page must escape it.

    An action that this release does not know is quoted.
    """
    facts = Facts(entry)
    say = SENTENCES.get(str(entry.action), _by_its_words)
    reason = str(entry.reason or "")
    if not reason or entry.action == Action.KEY_REFUSED:
        return say(facts)
    return f"{say(facts)}: “{shorten(reason, limit=LONGEST_REASON)}”"


def _by_its_words(facts: Facts) -> str:
    """Describe an audit entry whose action has no sentence of its own."""
    entry = facts.entry
    return f"{facts.who}: {shorten(str(entry.action))} of {shorten(str(entry.subject))}"
