"""Skips, and the reports of consumers about their use."""

from __future__ import annotations

from rest_framework import serializers

from apps.api.serializers.base import (
    AnyField,
    Id,
    Moment,
    Number,
    Reason,
    Schema,
    Text,
    choice,
)
from poisonguard.contract import MatcherKind

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


class NewSkip(Schema):
    topic = Text()
    consumer_group = Text(required=False, help_text="all groups if left out")
    matcher = Matcher()
    handler_version = Text(required=False, help_text="all versions if left out")
    expires_at = Moment(required=False)
    reason = Reason()
    poison = Number(required=False, help_text="the message that it is made for")
    everything = serializers.BooleanField(
        required=False, help_text="also a rule that matches every recent message"
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


class AddedSkip(Skip): ...


class Skips(Schema):
    epoch = Text(help_text="names this store; another one has other revisions")
    revision = Number(help_text="follow the stream after <epoch>.<revision>")
    skips = Skip(many=True)
    suspects = Suspect(
        many=True, help_text="not to be skipped: handle them, and report it"
    )


class Unskip(Schema):
    reason = Reason()


class Applied(Schema):
    skip = Number()
    consumer_group = Text()
    client_name = Text()
    count = Number(min_value=0)
    last_at = Moment()
    report = Id(required=False, help_text="the id of this report: it counts once")
    handled = serializers.BooleanField(
        required=False, help_text="it was handled here: an automatic skip of it ends"
    )


class AppliedReports(Schema):
    applied = Applied(many=True)


class AppliedAnswer(Schema):
    status = AppliedStatus()
    detail = Text(required=False)
    pointer = Text(required=False)


class AppliedAnswers(Schema):
    results = AppliedAnswer(many=True, help_text="one for each member, in order")
