"""Sentences for the skips and the positions of consumers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from apps.audit.services import Action
from apps.dashboard.presentation.audit_entry_facts import (
    Facts,
    Sentence,
    name_of,
    shorten,
)
from apps.dashboard.presentation.moments import utc


def _skip_added(facts: Facts) -> str:
    return f"{facts.who} added skip {facts.subject}{_of_skip(facts)}"


def _skip_renewed(facts: Facts) -> str:
    skip = f"{facts.subject}{_of_skip(facts)}"
    return f"{facts.who} renewed skip {skip}{_earlier_terms(facts)}"


def _earlier_terms(facts: Facts) -> str:
    """Say who had added a renewed skip, and until when; "" if the entry lacks it."""
    before = facts.detail.get("before")
    if not isinstance(before, Mapping) or not before.get("by"):
        return ""
    end = before.get("expires_at")
    until = _time_of(str(end)) if end else "a person removes it"
    return f", which {name_of(before['by'], key='the key')} had added until {until}"


def _time_of(text: str) -> str:
    """Write a time of an audit entry as pages do; shorten a text of another kind."""
    try:
        return utc(datetime.fromisoformat(text).astimezone(UTC))
    except (ValueError, OverflowError):
        return shorten(text)


def _skip_removed(facts: Facts) -> str:
    return f"{facts.who} ended skip {facts.subject}{_of_skip(facts)}"


def _of_skip(facts: Facts) -> str:
    """Return a sentence's end for a skip: what it matches, of which topic."""
    kind, value, topic = (facts.text(name) for name in ("kind", "value", "topic"))
    what = f" by {kind} “{value}”" if kind else ""
    return f"{what} of the topic {topic}" if topic else what


def _position_moved(facts: Facts) -> str:
    deed = "moved the position"
    if facts.detail.get("restores"):
        deed = "restored an earlier position"
    client, topic = facts.text("client_name"), facts.text("topic")
    whose = f" of {client}" if client else f" {facts.subject}"
    return f"{facts.who} {deed}{whose}" + (f" on {topic}" if topic else "")


SENTENCES: Final[Mapping[str, Sentence]] = {
    Action.SKIP_ADDED: _skip_added,
    Action.SKIP_RENEWED: _skip_renewed,
    Action.SKIP_REMOVED: _skip_removed,
    Action.POSITION_MOVED: _position_moved,
}
