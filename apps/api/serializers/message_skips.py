"""Skips, and the reports of consumers about their use."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from apps.api.list_in_request_body import MOST_MEMBERS
from apps.api.serializers.base import (
    OPTIONAL,
    AnyField,
    Flag,
    Id,
    Moment,
    Name,
    Number,
    QuerySchema,
    ReasonText,
    RequestSchema,
    Schema,
    Text,
    choice,
)
from apps.core.errors import Invalid
from apps.poison import skip_matching
from apps.poison.query_language import MAX_ID
from poisonguard.contract import COUNT_LIMIT, SEQUENCE_LIMIT, MatcherKind

MatcherKindName = choice("MatcherKind", MatcherKind)
AppliedStatus = choice("AppliedStatus", ("ok", "rejected"))


class Matcher(Schema):
    kind = MatcherKindName()

    def get_fields(self) -> dict[str, AnyField]:
        value = serializers.JSONField(
            help_text="a bookmark, a message id or a SHA-256 in hexadecimal; of a rule"
            " an object of header or pointer (RFC 6901), and equals"
        )
        return {**super().get_fields(), "value": value}

    def to_internal_value(self, data: object) -> Any:
        try:
            return skip_matching.Matcher.parse(data)
        except Invalid as wrong:
            raise serializers.ValidationError(_within_matcher(wrong)) from None


def _within_matcher(wrong: Invalid) -> Any:
    """Place an error's remedy inside the matcher, at the field that it names."""
    detail: Any = [wrong.remedy]
    for name in reversed(wrong.field.split("/")[1:]):
        detail = {name: detail}
    return detail


class SkipListQuery(QuerySchema[dict[str, Any]]):
    topic = Name(help_text="the name of one")
    consumer_group = Name(
        default=None, help_text="its skips and those for all; all skips if left out"
    )


class NewSkip(RequestSchema[dict[str, Any]]):
    topic = Name()
    consumer_group = Name(**OPTIONAL, help_text="all groups if left out")
    matcher = Matcher()
    handler_version = Name(**OPTIONAL, help_text="all versions if left out")
    expires_at = Moment(**OPTIONAL)
    reason = ReasonText()
    poison = Number(
        **OPTIONAL,
        min_value=0,
        max_value=MAX_ID,
        source="poison_id",
        help_text="the message that it is made for",
    )
    everything = Flag(
        default=False, help_text="also a rule that matches every recent message"
    )


class Skip(Schema):
    id = Number()
    topic = Text()
    matcher = Matcher()
    consumer_group = Text(allow_null=True, help_text="null: all groups")
    handler_version = Text(allow_null=True, help_text="null: all versions")
    redrive = Id(
        allow_null=True,
        help_text="the redrive whose failure added it: it skips that redrive, too",
    )
    expires_at = Moment(allow_null=True)
    reason = Text()
    by = Text()
    at = Moment()
    poison = Number(allow_null=True)


class Suspect(Skip):
    message_id = Text(allow_null=True)
    seq = Number(allow_null=True, help_text="its place among those of its publisher")


class RenewedTerms(Schema):
    by = Text()
    at = Moment()
    expires_at = Moment(allow_null=True)
    reason = Text()
    handler_version = Text(allow_null=True)
    poison = Number(allow_null=True)
    automatic = Flag(help_text="capture had made it")


class AddedSkip(Skip):
    renews = RenewedTerms(
        allow_null=True,
        help_text="what the active skip with this matcher was before; null: it is new,"
        " or the key is without skips:read",
    )


class Skips(Schema):
    epoch = Text(help_text="names this store; another one has other revisions")
    revision = Number(help_text="follow the stream after <epoch>.<revision>")
    skips = Skip(many=True)
    suspects = Suspect(
        many=True, help_text="not to be skipped: handle them, and report it"
    )


class Unskip(RequestSchema[dict[str, str]]):
    reason = ReasonText()


class Applied(Schema):
    skip = Number(min_value=0, max_value=SEQUENCE_LIMIT)
    consumer_group = Name()
    client_name = Name()
    count = Number(min_value=0, max_value=COUNT_LIMIT)
    last_at = Moment()
    report = Id(**OPTIONAL, help_text="the id of this report: it counts once")
    handled = Flag(
        **OPTIONAL, help_text="it was handled here: an automatic skip of it ends"
    )


class AppliedReports(Schema):
    applied = serializers.ListField(child=Applied(), max_length=MOST_MEMBERS)


class AppliedAnswer(Schema):
    status = AppliedStatus()
    detail = Text(required=False)
    pointer = Text(required=False)


class AppliedAnswers(Schema):
    results = AppliedAnswer(many=True, help_text="one for each member, in order")
