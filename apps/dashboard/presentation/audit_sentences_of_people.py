"""Sentences for people: their sign-ins, rights and API keys, and what they read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from apps.audit.services import Action
from apps.dashboard.presentation.audit_entry_changes import changes
from apps.dashboard.presentation.audit_entry_facts import (
    Facts,
    Sentence,
    from_address,
    join_first,
    shorten,
    who_did,
    who_did_to_subject,
)
from apps.dashboard.presentation.plurals import counted_noun as plural
from apps.team.sign_in_attempts import UNKNOWN

# How to describe a change of a person's rights, by the new value.
RIGHTS: Final = {
    "is_active": {"yes": "enabled", "no": "disabled"},
    "reads_bodies": {"yes": "may read bodies now", "no": "may no longer read bodies"},
}


def _key_created(facts: Facts) -> str:
    scopes = join_first(facts.texts("scopes"))
    topics = join_first(facts.texts("topics"))
    return (
        f"{facts.who} created the key {facts.subject} with {scopes or 'no scope'}, "
        f"for the topics {topics or 'that it names'}"
    )


def _key_refused(facts: Facts) -> str:
    reason = shorten(str(facts.entry.reason or "ended"))
    return (
        f"The key {facts.subject}, which is {reason}, was refused{from_address(facts)}"
    )


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


def _sign_in_failed(facts: Facts) -> str:
    """Describe a failed sign-in and why, or a wrong password or code on a page."""
    name = "an unknown name" if facts.subject == UNKNOWN else facts.subject
    what = facts.text("of", "password")
    if page := facts.text("page"):
        return f"A wrong {what} for {name} was given on “{page}”{from_address(facts)}"
    text = f"A sign-in as {name}{from_address(facts)} failed"
    if facts.detail.get("disabled"):
        return f"{text}: the account is disabled"
    why = facts.text("why") if what == "provider" else f"wrong {what}"
    return f"{text}: {why}" if "of" in facts.detail and why else text


def _sign_ins_suspicious(facts: Facts) -> str:
    failures = facts.count("failures", "failed attempt")
    return (
        f"{failures} at the password or code of {facts.subject} within the hour, "
        f"the last{from_address(facts)}"
    )


def _password_set(facts: Facts) -> str:
    own = facts.entry.actor == facts.entry.subject
    whose = "their own account" if own else facts.subject
    return f"{facts.who} set a new password for {whose}"


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


SENTENCES: Final[Mapping[str, Sentence]] = {
    Action.BODY_REVEALED: _body_revealed,
    Action.KEY_CREATED: _key_created,
    Action.KEY_REVOKED: who_did_to_subject("revoked the key"),
    Action.KEY_REFUSED: _key_refused,
    Action.USER_CREATED: _user_created,
    Action.USER_ALTERED: _user_altered,
    Action.SESSIONS_ENDED: _sessions_ended,
    Action.USER_SIGNED_IN: who_did("signed in", says_where=True),
    Action.USER_SIGNED_OUT: who_did("signed out", says_where=True),
    Action.SIGN_IN_FAILED: _sign_in_failed,
    Action.SIGN_INS_SUSPICIOUS: _sign_ins_suspicious,
    Action.PASSWORD_SET: _password_set,
    Action.SECOND_FACTOR_ADDED: who_did("added a second factor"),
    Action.SECOND_FACTOR_REMOVED: who_did_to_subject("removed the second factor of"),
    Action.RECOVERY_CODES_MADE: who_did("made new recovery codes"),
    Action.RECOVERY_CODE_USED: who_did("used up a recovery code"),
}
