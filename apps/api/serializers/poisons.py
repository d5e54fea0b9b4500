"""Poisons: as rows of a list, and one with its history."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from apps.api.serializers.audit_trail import Entry
from apps.api.serializers.base import (
    AnyField,
    CauseName,
    Flag,
    Hex,
    Id,
    List,
    Moment,
    Number,
    Schema,
    Text,
    TextOrNull,
    choice,
    within,
)
from apps.api.serializers.triage_operations import OperationRow
from apps.poison.states import DisplayState, PoisonState, RedriveOutcome

PoisonStateName = choice("PoisonState", PoisonState)
ShownState = choice("ShownState", DisplayState)
OutcomeName = choice("RedriveOutcome", RedriveOutcome)


class FlagByNow(Flag):
    """A flag that depends on the time: the source takes the context's `now`."""

    def to_representation(self, value: Any) -> bool:
        return bool(value(self.context["now"]))


class PoisonCounts(Schema):
    failures = Number()
    attempts = Number()
    crashes = Number()
    redrives = Number()
    recurrences = Number()


class Poison(Schema):
    id = Number()
    topic = Text(source="topic.name")
    consumer_group = Text()
    problem = Number(source="problem_id")
    message_id = Text(allow_null=True)
    state = PoisonStateName()
    shown = ShownState(
        source="display_state", help_text="the state as pages and `is:` name it"
    )
    silent = FlagByNow(help_text="sent, and no answer for 10 min")
    suspected = Flag(help_text="its consumer may be at fault")
    moved_to = Text(source="moved_to.name", allow_null=True)
    given_back = Flag(
        source="is_given_back",
        help_text="its dead-letter queue has it again; moved_to is its own topic",
    )
    cause = CauseName()
    error_type = Text()
    error_message = Text()
    size = Number(help_text="bytes of the body")
    digest = Hex(help_text="SHA-256 of the body, in hexadecimal")
    reuse = Number(help_text="above 0: its bookmark came before, with another body")
    counts = PoisonCounts(source="*")
    first_failed_at = Moment()
    last_failed_at = Moment()
    captured_at = Moment()
    sent_at = Moment(allow_null=True)
    dropped_at = Moment(allow_null=True)


class Failure(Schema):
    report_id = Id(source="failure.report_id")
    problem = Number(source="failure.problem_id")
    redrive = Id(source="failure.redrive", allow_null=True)
    suspected = Flag(
        source="failure.suspected", help_text="as its consumer reported it"
    )
    cause = CauseName(source="failure.cause")
    error_type = Text(source="failure.error_type")
    error_message = Text(source="message")
    traceback = Text()
    cut = Flag(help_text="the texts are longer than shown")
    client_name = Text(source="failure.client_name")
    sub_id = Text(source="failure.sub_id", allow_null=True)
    host = Text(source="failure.host", allow_null=True)
    handler_version = Text(source="failure.handler_version", allow_null=True)
    attempts = Number(source="failure.attempts")
    failures = Number(source="failure.failures")
    crashes = Number(source="failure.crashes")
    dequeue_count = Number(source="failure.dequeue_count", allow_null=True)
    first_failed_at = Moment(source="failure.first_failed_at")
    failed_at = Moment(source="failure.failed_at")
    failed_at_claimed = Moment(
        source="failure.failed_at_claimed",
        allow_null=True,
        help_text="as its consumer sent it, where that is implausible",
    )
    captured_at = Moment(source="failure.captured_at")
    times = Number(
        source="failure.times",
        help_text="how many failures within a minute it stands for; `attempts` is the"
        " sum of theirs, all else is of the last",
    )
    last_failed_at = Moment(
        source="failure.last_failed_at",
        allow_null=True,
        help_text="when the last of them failed, if it may stand for several",
    )


class Redrive(Schema):
    id = Id()
    n = Number()
    topic = Text(source="topic.name")
    operation = Number(allow_null=True)
    queue = TextOrNull(help_text="the dead-letter queue it was given back to")
    outcome = OutcomeName()
    detail = Text()
    bookmark = Text()
    copies = Number(help_text="how often it was sent under this id")
    claimed_at = Moment()
    sent_at = Moment(allow_null=True)
    answered_at = Moment(allow_null=True)


class PoisonDetail(Poison):
    bookmark = Text(source="poison.bookmark_text")
    header_names = serializers.ListField(
        child=Text(), help_text="of the first 200, each at most 1,024 bytes"
    )
    failures = Failure(many=True, help_text="the newest 50")
    redrives = Redrive(many=True, help_text="the newest 50")
    operations = OperationRow(many=True, help_text="that held it; the newest 50")
    audit = Entry(
        source="entries",
        many=True,
        allow_null=True,
        help_text="null without audit:read",
    )

    def get_fields(self) -> dict[str, AnyField]:
        row = within("poison", Poison().get_fields())
        return {**super().get_fields(), **row}


class Poisons(List):
    results = Poison(many=True)
