"""Sentences for brokers, topics, lanes, endpoints, outboxes and reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from apps.audit.services import Action
from apps.dashboard.presentation.audit_entry_changes import changes
from apps.dashboard.presentation.audit_entry_facts import (
    Facts,
    Sentence,
    join_first,
    shorten,
    who_did_to_subject,
)
from apps.dashboard.presentation.plurals import counted_noun as plural


class Switch(NamedTuple):
    """A setting that is yes or no, and a verb for a change to either."""

    name: str
    yes: str
    no: str


def _altered(
    noun: str, *, values: str = "settings", switch: Switch | None = None
) -> Sentence:
    """Return a function that describes what changed of the settings of a thing."""

    def say(facts: Facts) -> str:
        thing = f"the {noun} {facts.subject}"
        changed = changes(facts.entry)
        if len(changed) != 1:
            return f"{facts.who} changed {len(changed):,} {values} of {thing}"
        ((name, old, new),) = changed
        if switch is not None and name == switch.name:
            return f"{facts.who} {switch.yes if new == 'yes' else switch.no} {thing}"
        change = f"from {shorten(old) or 'none'} to {shorten(new) or 'none'}"
        return f"{facts.who} changed {shorten(name)} of {thing} {change}"

    return say


def _added(deed: str, member: str, ending: str) -> Sentence:
    """Return a function that describes an addition, with one member of its detail."""

    def say(facts: Facts) -> str:
        value = facts.text(member)
        end = ending.format(value) if value else ""
        return f"{facts.who} {deed} {facts.subject}{end}"

    return say


def _topic_removed(facts: Facts) -> str:
    names = facts.texts("topics") or [facts.subject]
    topics = "the topic" if len(names) == 1 else f"{len(names):,} topics:"
    return f"{facts.who} removed {topics} {join_first(names)}"


def _broker_altered(facts: Facts) -> str:
    fields = join_first(facts.texts("changed")) or "settings"
    return f"{facts.who} changed {fields} of the broker {facts.subject}"


def _broker_removed(facts: Facts) -> str:
    topics = plural(len(facts.texts("topics")), "topic")
    return f"{facts.who} removed the broker {facts.subject} with {topics}"


def _allowance_written(facts: Facts) -> str:
    entries = join_first(facts.texts("entries"))
    return (
        f"{facts.who} wrote what the broker {facts.subject} uses into the "
        f"allow-list: {entries}"
    )


def _allowance_confirmed(facts: Facts) -> str:
    return f"{facts.who} confirmed {facts.text('entry')} for the broker {facts.subject}"


def _allowance_struck(facts: Facts) -> str:
    entry = facts.text("entry")
    return f"{facts.who} struck {entry} from the allow-list of {facts.subject}"


def _lane_set(facts: Facts) -> str:
    names = facts.texts("topics")
    lanes = (
        f"the lanes of {join_first(names)}" if names else f"the lane of {facts.subject}"
    )
    queue = facts.text("tee_queue")
    copies = f", with copies to {queue}" if queue else ""
    return f"{facts.who} set {lanes} to {facts.text('mode', 'another mode')}{copies}"


def _report_requested(facts: Facts) -> str:
    first, last = facts.text("from"), facts.text("to")
    days = first if first == last else f"{first} to {last}"
    return f"{facts.who} asked for the report of {days}"


def _outbox_row_released(facts: Facts) -> str:
    return f"{facts.who} let {_outbox_row(facts)} be sent"


def _outbox_row_dropped(facts: Facts) -> str:
    return f"{facts.who} dropped {_outbox_row(facts)}"


def _outbox_row(facts: Facts) -> str:
    return f"row {facts.text('row_id')} of the outbox {facts.subject}"


SENTENCES: Final[Mapping[str, Sentence]] = {
    Action.TOPIC_REGISTERED: _added(
        "registered the topic", "broker", " of the broker {}"
    ),
    Action.TOPIC_ALTERED: _altered("topic", values="policies"),
    Action.TOPIC_REMOVED: _topic_removed,
    Action.BROKER_REGISTERED: _added("registered the broker", "kind", " ({})"),
    Action.BROKER_ALTERED: _broker_altered,
    Action.BROKER_REMOVED: _broker_removed,
    Action.ALLOWANCE_WRITTEN: _allowance_written,
    Action.ALLOWANCE_CONFIRMED: _allowance_confirmed,
    Action.ALLOWANCE_STRUCK: _allowance_struck,
    Action.LANE_SET: _lane_set,
    Action.LANE_PAUSED: who_did_to_subject("paused the lane of"),
    Action.LANE_RESUMED: who_did_to_subject("resumed the lane of"),
    Action.REPORT_REQUESTED: _report_requested,
    Action.ENDPOINT_CREATED: _added("added the endpoint", "target", " for {}"),
    Action.ENDPOINT_ALTERED: _altered(
        "endpoint", switch=Switch("is_enabled", "enabled", "disabled")
    ),
    Action.ENDPOINT_REMOVED: who_did_to_subject("removed the endpoint"),
    Action.OUTBOX_ADDED: _added("added the outbox", "broker", " for {}"),
    Action.OUTBOX_ALTERED: _altered(
        "outbox", switch=Switch("is_paused", "paused", "resumed")
    ),
    Action.OUTBOX_REMOVED: who_did_to_subject("removed the outbox"),
    Action.OUTBOX_ROW_RELEASED: _outbox_row_released,
    Action.OUTBOX_ROW_DROPPED: _outbox_row_dropped,
}
