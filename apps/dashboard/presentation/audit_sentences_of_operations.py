"""Sentences for decisions about messages and deliveries, and what came of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from apps.audit.services import Action
from apps.dashboard.presentation.audit_entry_facts import (
    Facts,
    Sentence,
    join_first,
    shorten,
    who_did_to_subject,
)
from apps.dashboard.presentation.plurals import counted_noun as plural

PROBLEMS = re.compile(r"(?:^|\s)problem:(\d+(?:,\d+)*)(?=\s|$)")
# What came of it has an entry of its own: some may be skipped, or the rest cancelled.
DECISIONS: Final = {
    "redrive": "decided to requeue",
    "drop": "decided to drop",
    "restore": "decided to restore",
    "give_back": "decided to give back",
    "try_now": "decided to hurry",
    "give_up": "decided to give up on",
}
# Where they have a rate, they are about deliveries.
OF_DELIVERIES: Final = ("try_now", "restore")
# Outcomes of an operation that pages call by another word.
STANDINGS: Final = {
    "confirmed": "handled",
    "recurred": "came back",
    "given_up": "given up",
}


def _operation_confirmed(facts: Facts) -> str:
    decision = DECISIONS.get(facts.text("verb"), facts.text("verb", "decided on"))
    # Entries of 0.1.0 call this number `total`.
    number = facts.count(
        "will_act" if "will_act" in facts.detail else "total",
        "delivery" if facts.text("items") == "delivery" else "message",
    )
    if single := _single_item(facts):
        number = single
    text = f"{facts.who} {decision} {number}{_of_selection(facts)}"
    if target := facts.text("target_topic"):
        text += f" to {target}"
    if undone := facts.text("undo_of"):
        text += f", undoing operation {undone}"
    return text


def _single_item(facts: Facts) -> str:
    """Name the only message of an audited operation; "" if it has several."""
    for noun in ("message", "delivery"):
        if name := facts.text(noun):
            return f"{noun} {name}"
    return ""


def _of_selection(facts: Facts) -> str:
    """Return the end of an operation's sentence: of which problems, or which query.

    It is "" if the audit entry names neither.
    """
    query = facts.text("query")
    numbers = facts.texts("problems")
    if not numbers and (problems := PROBLEMS.search(query)):
        numbers = problems[1].split(",")
    if numbers:
        return f" of problem{'s' if len(numbers) > 1 else ''} {join_first(numbers)}"
    return f" found by “{query}”" if query else ""


def _operation_finished(facts: Facts) -> str:
    return _ended(facts, "finished")


def _operation_cancelled(facts: Facts) -> str:
    return _ended(facts, "was cancelled")


def _ended(facts: Facts, deed: str) -> str:
    """Describe the end of an audited operation, with its number of each outcome."""
    text = _operation(facts)
    if single := _single_item(facts):
        text += f" on {single}"
    counts = facts.detail.get("counts")
    numbers = counts.items() if isinstance(counts, Mapping) else ()
    outcome = [f"{shorten(str(n))} {STANDINGS.get(name, name)}" for name, n in numbers]
    return f"{text} {deed}" + (f": {', '.join(outcome)}" if outcome else "")


def _operation(facts: Facts) -> str:
    """Name the operation of an audit entry, and the owner of the operation."""
    owner = facts.text("for")
    whose = f" of {owner.partition(':')[2] or owner}" if owner else ""
    return f"Operation {facts.subject}{whose}"


def _operation_paused(facts: Facts) -> str:
    """Describe an operation's pause: by a person, or by the operation itself."""
    if why := facts.text("because"):
        return f"{_operation(facts)} paused itself: {why}"
    return f"{facts.who} paused operation {facts.subject}"


def _operation_resumed(facts: Facts) -> str:
    """Describe that an operation goes on, and what becomes of its ramp."""
    ramp = {
        "removed": ", without its ramp",
        "begins again": ", whose ramp begins again",
    }
    text = f"{facts.who} resumed operation {facts.subject}"
    return text + ramp.get(facts.text("ramp"), "")


def _operation_rate_changed(facts: Facts) -> str:
    """Describe a new rate limit of an operation, and the one before."""
    before, after = facts.text("before"), facts.text("after")
    text = f"{facts.who} let operation {facts.subject} send "
    noun = "deliveries" if facts.text("verb") in OF_DELIVERIES else "messages"
    text += f"at most {after} {noun} a second" if after else "as fast as it can"
    return f"{text}, before at most {before}" if before else text


def _operation_acknowledged(facts: Facts) -> str:
    """Describe how many messages in trouble a person has seen."""
    noun = "delivery" if facts.text("verb") in OF_DELIVERIES else "message"
    troubled = facts.count("messages", noun)
    return (
        f"{facts.who} acknowledged {troubled} in trouble of operation {facts.subject}"
    )


def _deliveries_retried(facts: Facts) -> str:
    return f"{facts.who} had {_deliveries(facts)} tried again at once"


def _deliveries_given_up(facts: Facts) -> str:
    return f"{facts.who} gave up on {_deliveries(facts)}"


def _deliveries_restored(facts: Facts) -> str:
    return f"{facts.who} restored {_deliveries(facts)}"


def _deliveries(facts: Facts) -> str:
    """Describe which deliveries were decided on, and to which endpoints they go."""
    ids, endpoints = facts.texts("deliveries"), join_first(facts.texts("endpoints"))
    which = plural(len(ids), "delivery")
    if len(ids) == 1 or not ids:
        which = f"delivery {facts.subject or join_first(ids)}".strip()
    return f"{which} to {endpoints}" if endpoints else which


SENTENCES: Final[Mapping[str, Sentence]] = {
    Action.OPERATION_CONFIRMED: _operation_confirmed,
    Action.OPERATION_FINISHED: _operation_finished,
    Action.OPERATION_PAUSED: _operation_paused,
    Action.OPERATION_RESUMED: _operation_resumed,
    Action.OPERATION_CANCEL_REQUESTED: who_did_to_subject("cancelled operation"),
    Action.OPERATION_CANCELLED: _operation_cancelled,
    Action.OPERATION_RATE_CHANGED: _operation_rate_changed,
    Action.OPERATION_ACKNOWLEDGED: _operation_acknowledged,
    Action.DELIVERIES_RETRIED: _deliveries_retried,
    Action.DELIVERIES_GIVEN_UP: _deliveries_given_up,
    Action.DELIVERIES_RESTORED: _deliveries_restored,
}
