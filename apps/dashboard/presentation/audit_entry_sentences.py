"""Describe each audit entry in a sentence: who did what, and why.

An entry that was inserted by hand may hold anything: every member may be missing or of
another type, and every text is shortened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from apps.audit.models import Entry
from apps.audit.services import Action
from apps.dashboard.presentation.audit_entry_changes import changes
from apps.dashboard.presentation.moments import utc
from apps.dashboard.presentation.plurals import counted_noun as plural
from apps.team.sign_in_attempts import UNKNOWN

# How to describe a change of a person's rights, by the new value.
RIGHTS: Final = {
    "is_active": {"yes": "enabled", "no": "disabled"},
    "reads_bodies": {"yes": "may read bodies now", "no": "may no longer read bodies"},
}
LONGEST_NAME: Final = 120
LONGEST_REASON: Final = 300
MOST_NAMES: Final = 3
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


@dataclass(frozen=True, slots=True)
class Facts:
    """Safe access to the members of an audit entry."""

    entry: Entry

    @property
    def who(self) -> str:
        """Return who acted in an audit entry, as a subject: a name, or "The key x"."""
        return _name_of(self.entry.actor, key="The key")

    @property
    def subject(self) -> str:
        """Return the name of an audit entry's subject, without its kind."""
        return shorten(str(self.entry.subject).partition(":")[2])

    @property
    def detail(self) -> Mapping[str, object]:
        """Return the audit entry's detail; {} if it is not a mapping."""
        return self.entry.detail if isinstance(self.entry.detail, Mapping) else {}

    def text(self, name: str, default: str = "") -> str:
        """Return a value of the audit entry's detail as short text, else `default`."""
        value = self.detail.get(name)
        return default if value in (None, "") else shorten(str(value))

    def texts(self, name: str) -> list[str]:
        """Return a list of the audit entry's detail as short texts; [] without one."""
        value = self.detail.get(name)
        return [shorten(str(each)) for each in value] if isinstance(value, list) else []

    def count(self, name: str, noun: str) -> str:
        """Count a noun by a number in the audit entry's detail: "3 messages".

        Without a number it is "0 messages".
        """
        value = self.detail.get(name)
        number = value if isinstance(value, int) else 0
        return plural(number, noun)


def _name_of(actor: object, *, key: str) -> str:
    """Return the name of an actor; `key` are the words before the name of a key."""
    kind, _, name = str(actor).partition(":")
    name = shorten(name or kind)
    if kind == "key":
        return f"{key} {name}"
    return f"Poisonweb ({name})" if kind == "system" else name


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


def shorten(text: str, *, limit: int = LONGEST_NAME) -> str:
    """Shorten a text of an audit entry to `limit` characters, with "…"."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def join_first(names: list[str]) -> str:
    """Join the first few names of an audit entry, and count the others."""
    first, others = names[:MOST_NAMES], len(names) - MOST_NAMES
    return ", ".join(first) + (f" and {others:,} more" if others > 0 else "")


def _by_its_words(facts: Facts) -> str:
    """Describe an audit entry whose action has no sentence of its own."""
    entry = facts.entry
    return f"{facts.who}: {shorten(str(entry.action))} of {shorten(str(entry.subject))}"


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


def _operation_cancel_requested(facts: Facts) -> str:
    return f"{facts.who} cancelled operation {facts.subject}"


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


def _body_revealed(facts: Facts) -> str:
    """Describe who read the body of a message, or what else was revealed.

    That is a header of a problem's messages, samples of a topic, or the contents of a
    delivery.
    """
    kind = str(facts.entry.subject).partition(":")[0]
    if kind == "problem":
        header = facts.text("header")
        return (
            f"{facts.who} read the header {header} of messages of "
            f"problem {facts.subject}"
        )
    if kind == "topic":
        samples = facts.count("samples", "sample")
        return f"{facts.who} read {samples} of the topic {facts.subject}"
    deed = "downloaded" if facts.text("how") == "downloaded" else "read"
    if kind == "delivery":
        endpoint = facts.text("endpoint")
        where = f" to {endpoint}" if endpoint else ""
        return f"{facts.who} {deed} the contents of delivery {facts.subject}{where}"
    topic = facts.text("topic")
    where = f" of {topic}" if topic else ""
    return f"{facts.who} {deed} the body of message {facts.subject}{where}"


def _key_created(facts: Facts) -> str:
    scopes = join_first(facts.texts("scopes"))
    topics = join_first(facts.texts("topics"))
    return (
        f"{facts.who} created the key {facts.subject} with {scopes or 'no scope'}, "
        f"for the topics {topics or 'that it names'}"
    )


def _key_revoked(facts: Facts) -> str:
    return f"{facts.who} revoked the key {facts.subject}"


def _key_refused(facts: Facts) -> str:
    reason = shorten(str(facts.entry.reason or "ended"))
    return (
        f"The key {facts.subject}, which is {reason}, was refused{_from_address(facts)}"
    )


def _from_address(facts: Facts) -> str:
    """Return a sentence's end: from which network address, or ""."""
    address = facts.text("address")
    return f" from {address}" if address else ""


def _user_created(facts: Facts) -> str:
    role = facts.text("role", "person")
    bodies = ", who may read bodies" if facts.detail.get("reads_bodies") else ""
    return f"{facts.who} created the {role} {facts.subject}{bodies}"


def _user_altered(facts: Facts) -> str:
    changed = changes(facts.entry)
    if len(changed) == 1 and changed[0].field == "is_active":
        deed = "enabled" if changed[0].after == "yes" else "disabled"
        return f"{facts.who} {deed} {facts.subject}"
    texts = [shorten(_right_changed(*change)) for change in changed]
    return f"{facts.who} changed {facts.subject}" + (
        f": {join_first(texts)}" if texts else ""
    )


def _right_changed(name: str, old: str, new: str) -> str:
    """Describe the change of one right of a person."""
    text = RIGHTS.get(name, {}).get(new)
    return text or f"{name} from {old} to {new}"


def _sessions_ended(facts: Facts) -> str:
    ended = facts.detail.get("sessions")
    where = f"of {plural(ended, 'session')}" if isinstance(ended, int) else "everywhere"
    return f"{facts.who} signed {facts.subject} out {where}"


def _did(deed: str, *, says_where: bool = False) -> Callable[[Facts], str]:
    """Return a function that describes an audited action without details."""

    def say(facts: Facts) -> str:
        return f"{facts.who} {deed}{_from_address(facts) if says_where else ''}"

    return say


def _second_factor_removed(facts: Facts) -> str:
    return f"{facts.who} removed the second factor of {facts.subject}"


def _sign_in_failed(facts: Facts) -> str:
    """Describe a failed sign-in and why, or a wrong password or code on a page."""
    name = "an unknown name" if facts.subject == UNKNOWN else facts.subject
    what = facts.text("of", "password")
    if page := facts.text("page"):
        return f"A wrong {what} for {name} was given on “{page}”{_from_address(facts)}"
    text = f"A sign-in as {name}{_from_address(facts)} failed"
    if facts.detail.get("disabled"):
        return f"{text}: the account is disabled"
    why = facts.text("why") if what == "provider" else f"wrong {what}"
    return f"{text}: {why}" if "of" in facts.detail and why else text


def _sign_ins_suspicious(facts: Facts) -> str:
    failures = facts.count("failures", "failed attempt")
    return (
        f"{failures} at the password or code of {facts.subject} within the hour, "
        f"the last{_from_address(facts)}"
    )


def _password_set(facts: Facts) -> str:
    own = facts.entry.actor == facts.entry.subject
    whose = "their own account" if own else facts.subject
    return f"{facts.who} set a new password for {whose}"


def _topic_registered(facts: Facts) -> str:
    broker = facts.text("broker")
    where = f" of the broker {broker}" if broker else ""
    return f"{facts.who} registered the topic {facts.subject}{where}"


def _topic_altered(facts: Facts) -> str:
    changed = changes(facts.entry)
    if len(changed) != 1:
        number = f"{len(changed):,} policies"
        return f"{facts.who} changed {number} of the topic {facts.subject}"
    ((name, old, new),) = changed
    values = f"from {shorten(old) or 'none'} to {shorten(new) or 'none'}"
    return f"{facts.who} changed {shorten(name)} of the topic {facts.subject} {values}"


def _topic_removed(facts: Facts) -> str:
    names = facts.texts("topics") or [facts.subject]
    topics = "the topic" if len(names) == 1 else f"{len(names):,} topics:"
    return f"{facts.who} removed {topics} {join_first(names)}"


def _broker_registered(facts: Facts) -> str:
    kind = facts.text("kind")
    return f"{facts.who} registered the broker {facts.subject}" + (
        f" ({kind})" if kind else ""
    )


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


def _lane_paused(facts: Facts) -> str:
    return f"{facts.who} paused the lane of {facts.subject}"


def _lane_resumed(facts: Facts) -> str:
    return f"{facts.who} resumed the lane of {facts.subject}"


def _report_requested(facts: Facts) -> str:
    first, last = facts.text("from"), facts.text("to")
    days = first if first == last else f"{first} to {last}"
    return f"{facts.who} asked for the report of {days}"


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
    return f", which {_name_of(before['by'], key='the key')} had added until {until}"


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


def _endpoint_created(facts: Facts) -> str:
    target = facts.text("target")
    return f"{facts.who} added the endpoint {facts.subject}" + (
        f" for {target}" if target else ""
    )


def _endpoint_altered(facts: Facts) -> str:
    changed = changes(facts.entry)
    if len(changed) != 1:
        number = f"{len(changed):,} settings"
        return f"{facts.who} changed {number} of the endpoint {facts.subject}"
    ((name, old, new),) = changed
    if name == "is_enabled":
        deed = "enabled" if new == "yes" else "disabled"
        return f"{facts.who} {deed} the endpoint {facts.subject}"
    values = f"from {shorten(old) or 'none'} to {shorten(new) or 'none'}"
    return (
        f"{facts.who} changed {shorten(name)} of the endpoint {facts.subject} {values}"
    )


def _endpoint_removed(facts: Facts) -> str:
    return f"{facts.who} removed the endpoint {facts.subject}"


def _outbox_added(facts: Facts) -> str:
    broker = facts.text("broker")
    where = f" for {broker}" if broker else ""
    return f"{facts.who} added the outbox {facts.subject}{where}"


def _outbox_altered(facts: Facts) -> str:
    changed = changes(facts.entry)
    if len(changed) != 1:
        number = f"{len(changed):,} settings"
        return f"{facts.who} changed {number} of the outbox {facts.subject}"
    ((name, old, new),) = changed
    if name == "is_paused":
        deed = "paused" if new == "yes" else "resumed"
        return f"{facts.who} {deed} the outbox {facts.subject}"
    values = f"from {shorten(old) or 'none'} to {shorten(new) or 'none'}"
    return f"{facts.who} changed {shorten(name)} of the outbox {facts.subject} {values}"


def _outbox_removed(facts: Facts) -> str:
    return f"{facts.who} removed the outbox {facts.subject}"


def _outbox_row_released(facts: Facts) -> str:
    return f"{facts.who} let {_outbox_row(facts)} be sent"


def _outbox_row_dropped(facts: Facts) -> str:
    return f"{facts.who} dropped {_outbox_row(facts)}"


def _outbox_row(facts: Facts) -> str:
    return f"row {facts.text('row_id')} of the outbox {facts.subject}"


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


SENTENCES: Final[Mapping[str, Callable[[Facts], str]]] = {
    Action.OPERATION_CONFIRMED: _operation_confirmed,
    Action.OPERATION_FINISHED: _operation_finished,
    Action.OPERATION_PAUSED: _operation_paused,
    Action.OPERATION_RESUMED: _operation_resumed,
    Action.OPERATION_CANCEL_REQUESTED: _operation_cancel_requested,
    Action.OPERATION_CANCELLED: _operation_cancelled,
    Action.OPERATION_RATE_CHANGED: _operation_rate_changed,
    Action.OPERATION_ACKNOWLEDGED: _operation_acknowledged,
    Action.BODY_REVEALED: _body_revealed,
    Action.KEY_CREATED: _key_created,
    Action.KEY_REVOKED: _key_revoked,
    Action.KEY_REFUSED: _key_refused,
    Action.USER_CREATED: _user_created,
    Action.USER_ALTERED: _user_altered,
    Action.SESSIONS_ENDED: _sessions_ended,
    Action.USER_SIGNED_IN: _did("signed in", says_where=True),
    Action.USER_SIGNED_OUT: _did("signed out", says_where=True),
    Action.SIGN_IN_FAILED: _sign_in_failed,
    Action.SIGN_INS_SUSPICIOUS: _sign_ins_suspicious,
    Action.PASSWORD_SET: _password_set,
    Action.SECOND_FACTOR_ADDED: _did("added a second factor"),
    Action.SECOND_FACTOR_REMOVED: _second_factor_removed,
    Action.RECOVERY_CODES_MADE: _did("made new recovery codes"),
    Action.RECOVERY_CODE_USED: _did("used up a recovery code"),
    Action.TOPIC_REGISTERED: _topic_registered,
    Action.TOPIC_ALTERED: _topic_altered,
    Action.TOPIC_REMOVED: _topic_removed,
    Action.BROKER_REGISTERED: _broker_registered,
    Action.BROKER_ALTERED: _broker_altered,
    Action.BROKER_REMOVED: _broker_removed,
    Action.ALLOWANCE_WRITTEN: _allowance_written,
    Action.ALLOWANCE_CONFIRMED: _allowance_confirmed,
    Action.ALLOWANCE_STRUCK: _allowance_struck,
    Action.LANE_SET: _lane_set,
    Action.LANE_PAUSED: _lane_paused,
    Action.LANE_RESUMED: _lane_resumed,
    Action.REPORT_REQUESTED: _report_requested,
    Action.SKIP_ADDED: _skip_added,
    Action.SKIP_RENEWED: _skip_renewed,
    Action.SKIP_REMOVED: _skip_removed,
    Action.POSITION_MOVED: _position_moved,
    Action.ENDPOINT_CREATED: _endpoint_created,
    Action.ENDPOINT_ALTERED: _endpoint_altered,
    Action.ENDPOINT_REMOVED: _endpoint_removed,
    Action.OUTBOX_ADDED: _outbox_added,
    Action.OUTBOX_ALTERED: _outbox_altered,
    Action.OUTBOX_REMOVED: _outbox_removed,
    Action.OUTBOX_ROW_RELEASED: _outbox_row_released,
    Action.OUTBOX_ROW_DROPPED: _outbox_row_dropped,
    Action.DELIVERIES_RETRIED: _deliveries_retried,
    Action.DELIVERIES_GIVEN_UP: _deliveries_given_up,
    Action.DELIVERIES_RESTORED: _deliveries_restored,
}
