"""The form of a new skip, and a preview of what it would have matched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django import forms
from django.core.signing import Signer
from django.http import QueryDict

from apps.brokers.models import Topic
from apps.core.errors import Absent, Invalid, PoisonwebError, Refused
from apps.dashboard.forms.fields import ReasonField, require_valid
from apps.dashboard.selectors.skips import MatcherLabel
from apps.poison import message_contents, skip_addition_and_removal, skip_matching
from apps.poison.models import Poison, Skip
from apps.poison.skip_matching import Matcher, MatchPreview
from apps.team.rights import Principal
from poisonguard.contract import NAME_LIMIT, TEXT_LIMIT, MatcherKind

MOST_HEADERS = 100
MOST_DIGITS = 19


class SkipCriterion(StrEnum):
    """What a skip matches by; a header and a JSON Pointer are both rules."""

    BOOKMARK = "bookmark"
    MESSAGE_ID = "message_id"
    BODY_DIGEST = "body_digest"
    HEADER = "header"
    POINTER = "pointer"


# Values that come from a message itself; a rule must be typed.
OF_A_MESSAGE = {
    SkipCriterion.BOOKMARK: MatcherKind.BOOKMARK,
    SkipCriterion.MESSAGE_ID: MatcherKind.MESSAGE_ID,
    SkipCriterion.BODY_DIGEST: MatcherKind.BODY_DIGEST,
}
LABELS = {
    SkipCriterion.BOOKMARK: "The message with this bookmark",
    SkipCriterion.MESSAGE_ID: "Every message with this message id",
    SkipCriterion.BODY_DIGEST: "Every message whose body has this SHA-256",
    SkipCriterion.HEADER: "Every message with this header",
    SkipCriterion.POINTER: "Every message with this in its body",
}
LABELS_OF_A_MESSAGE = {
    SkipCriterion.BOOKMARK: "This message alone, by its bookmark",
    SkipCriterion.MESSAGE_ID: "Every message with its message id",
    SkipCriterion.BODY_DIGEST: "Every message with the same body, byte for byte",
}
LIFETIMES: Mapping[str, tuple[str, timedelta | None]] = {
    "hour": ("for an hour", timedelta(hours=1)),
    "day": ("for a day", timedelta(days=1)),
    "week": ("for 7 days", timedelta(days=7)),
    "month": ("for 30 days", timedelta(days=30)),
    "quarter": ("for 90 days", timedelta(days=90)),
    "ever": ("until a person removes it", None),
}
DEFAULT_LIFETIME = "month"
_CHANGED = (
    "The skip, or the active one that it would renew, has changed since you looked."
    " This is how it is now; it was not added."
)


class SkipForm(forms.Form):
    """The form of a new skip; `seen` is the signature of the preview.

    For a skip of a message, the topic and the values come from that message.
    """

    topic = forms.CharField(required=False, strip=False, max_length=NAME_LIMIT)
    consumer_group = forms.CharField(required=False, strip=False, max_length=NAME_LIMIT)
    by = forms.ChoiceField(choices=[(by.value, by.value) for by in SkipCriterion])
    where = forms.CharField(required=False, strip=False, max_length=TEXT_LIMIT)
    value = forms.CharField(required=False, strip=False, max_length=TEXT_LIMIT)
    handler_version = forms.CharField(
        required=False, strip=False, max_length=NAME_LIMIT
    )
    lives = forms.ChoiceField(
        choices=[(name, label) for name, (label, _) in LIFETIMES.items()]
    )
    reason = ReasonField()
    everything = forms.BooleanField(required=False)
    seen = forms.CharField(required=False, max_length=NAME_LIMIT)

    def __init__(self, data: QueryDict, message: Poison | None) -> None:
        # Defaults for what the address leaves out.
        group = message.consumer_group if message else ""
        usual = {
            "by": SkipCriterion.BOOKMARK,
            "lives": DEFAULT_LIFETIME,
            "consumer_group": group,
        }
        super().__init__({**usual, **data.dict()})


@dataclass(frozen=True, kw_only=True, slots=True)
class SkipDraft:
    """A skip that can be previewed and added."""

    topic: Topic
    consumer_group: str | None
    matcher: Matcher
    handler_version: str | None
    lifetime: timedelta | None
    message: Poison | None

    @property
    def label(self) -> MatcherLabel:
        """Return what the skip would match by, as text."""
        return MatcherLabel.of(self.matcher)

    @property
    def message_by_bookmark(self) -> int | None:
        """Return the id of the form's message if the skip is by bookmark, or None."""
        if self.message is None or self.matcher.kind is not MatcherKind.BOOKMARK:
            return None
        return self.message.pk

    @property
    def api_body(self) -> dict[str, object]:
        """Return the body of the API call that adds the skip of this form."""
        kind, value = self.matcher.kind.value, self.matcher.wire_value
        body: dict[str, object] = {
            "topic": self.topic.name,
            "matcher": {"kind": kind, "value": value},
            "reason": "",
        }
        if self.consumer_group is not None:
            body["consumer_group"] = self.consumer_group
        if self.handler_version is not None:
            body["handler_version"] = self.handler_version
        return body


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftPreview:
    """What a draft would have matched among the newest messages of its topic.

    `renews` is the active skip whose place it would take.
    """

    draft: SkipDraft
    counts: MatchPreview
    sample: list[Poison]
    renews: Skip | None

    def mark(self, principal: Principal) -> str:
        """Sign the skip, so that a person can add only the one they previewed."""
        existing = self.renews and [self.renews.pk, self.renews.revision]
        text = json.dumps([self.draft.api_body, existing])
        return Signer(salt=f"skip of {principal.actor}").signature(text)

    @property
    def is_everything(self) -> bool:
        """Tell whether a skip's rule matched all messages that it was tried on.

        False for fewer than OVERBROAD_AFTER messages, and for a skip that is no rule.
        """
        counts = self.counts
        is_rule = self.draft.matcher.kind is MatcherKind.RULE
        return (
            is_rule
            and counts.matched == counts.of >= skip_addition_and_removal.OVERBROAD_AFTER
        )


def message_of(params: QueryDict, principal: Principal) -> Poison | None:
    """Return the message that the address asks to skip; None if it names none.

    Raises Absent if the message is not visible, or its number is no number.
    """
    number = params.get("message", "")
    if not number:
        return None
    if not (number.isascii() and number.isdigit() and len(number) <= MOST_DIGITS):
        raise Absent("There is no such message here.")
    return message_contents.visible(poison_id=int(number), principal=principal)


def lacks_only_a_reason(form: SkipForm, message: Poison | None) -> bool:
    """Tell whether the form of a skip needs no more entries but a reason.

    It is then for a message, and by a value of its own: bookmark, id or body.
    """
    return message is not None and form["by"].value() in OF_A_MESSAGE


def choices(message: Poison | None) -> list[tuple[str, str]]:
    """List what a skip can match by, for a message or without one."""
    if message is None:
        return list(LABELS.items())
    has_no_id = message.message_id is None
    return [
        (by, label)
        for by, label in {**LABELS, **LABELS_OF_A_MESSAGE}.items()
        if not (by is SkipCriterion.MESSAGE_ID and has_no_id)
    ]


def field_of(wrong: PoisonwebError | None) -> str:
    """Return the skip form's wrong field; "" if the error names no field."""
    if not isinstance(wrong, Invalid):
        return ""
    last = wrong.field.rpartition("/")[-1]
    field = {"header": "where", "pointer": "where", "equals": "value"}.get(last, last)
    return field if field in SkipForm.base_fields else ""


def draft(form: SkipForm, message: Poison | None, principal: Principal) -> SkipDraft:
    """Parse a form into a draft of a skip; raises Invalid for a wrong field.

    Raises Refused to match by a message id if the message has no id.
    """
    require_valid(form)
    data = form.cleaned_data
    return SkipDraft(
        topic=message.topic if message else _visible_topic(data["topic"], principal),
        consumer_group=data["consumer_group"] or None,
        matcher=_matcher(
            SkipCriterion(data["by"]), data["where"], data["value"], message
        ),
        handler_version=data["handler_version"] or None,
        lifetime=LIFETIMES[data["lives"]][1],
        message=message,
    )


def preview(draft: SkipDraft) -> DraftPreview:
    """Preview a skip: count the messages it would have matched, with samples.

    Finds the active skip that it would renew, too.
    """
    counts = skip_matching.preview(
        topic=draft.topic, consumer_group=draft.consumer_group, matcher=draft.matcher
    )
    sample = Poison.objects.filter(pk__in=counts.sample).select_related("topic")
    renews = skip_addition_and_removal.find_renewed(
        topic=draft.topic,
        consumer_group=draft.consumer_group,
        matcher=draft.matcher,
        handler_version=draft.handler_version,
    )
    return DraftPreview(
        draft=draft, counts=counts, sample=list(sample.recent_first()), renews=renews
    )


def add(
    form: SkipForm, preview: DraftPreview, principal: Principal, *, now: datetime
) -> Skip:
    """Add the previewed skip to its topic's skip list.

    Raises Refused if the skip, or the one it renews, is not as previewed, and Invalid
    without a reason, or if a rule matches every message and the person has not ticked
    that.
    """
    draft, data = preview.draft, form.cleaned_data
    if data["seen"] != preview.mark(principal):
        raise Refused(_CHANGED)
    if preview.is_everything and not data["everything"]:
        raise Invalid("everything", "tick “Yes, all of them” if you mean every message")
    check_reason(data["reason"])
    skip, _ = skip_addition_and_removal.add(
        topic=draft.topic,
        consumer_group=draft.consumer_group,
        matcher=draft.matcher,
        handler_version=draft.handler_version,
        expires_at=None if draft.lifetime is None else now + draft.lifetime,
        reason=data["reason"],
        poison_id=draft.message_by_bookmark,
        everything=data["everything"],
        principal=principal,
        now=now,
    )
    return skip


def check_reason(reason: str) -> None:
    """Raise Invalid for an empty reason: people answer for their skips."""
    if not reason.strip():
        raise Invalid("reason", "say why; it stands in the audit trail")


def header_names(message: Poison) -> list[str]:
    """List the headers of a message that a rule can name."""
    raw_names = message_contents.header_names(poison_id=message.pk)
    names = (name.decode(errors="replace") for name in raw_names)
    return [name for name in dict.fromkeys(names) if _is_nameable(name)][:MOST_HEADERS]


def _is_nameable(name: str) -> bool:
    """Tell whether a skip's rule can name this header."""
    return 0 < len(name) <= NAME_LIMIT and name.isprintable() and "\ufffd" not in name


def _visible_topic(name: str, principal: Principal) -> Topic:
    """Return the topic of this name if the principal sees it; else raises Invalid."""
    visible = Topic.objects.matching(principal.topics)
    topic = visible.filter(name=name).first()
    if topic is None:
        raise Invalid("topic", f"there is no topic “{name}” here")
    return topic


def _matcher(
    by: SkipCriterion, where: str, value: str, message: Poison | None
) -> Matcher:
    """Build a skip's matcher from the form's fields, or from its message."""
    if by is SkipCriterion.HEADER:
        return _rule({"header": where, "equals": value})
    if by is SkipCriterion.POINTER:
        return _rule({"pointer": where, "equals": _json_or_text(value)})
    if message is not None:
        return Matcher.from_poison(message, OF_A_MESSAGE[by])
    return Matcher.parse({"kind": by.value, "value": value})


def _rule(rule: dict[str, object]) -> Matcher:
    """Parse the rule entered in a skip's form into a matcher; raises Invalid."""
    return Matcher.parse({"kind": MatcherKind.RULE.value, "value": rule})


def _json_or_text(text: str) -> object:
    """Parse a rule's value as JSON; text that is no JSON stays as it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
