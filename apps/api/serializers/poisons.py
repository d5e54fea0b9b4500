"""Poisons: as rows of a list, and one with its history."""

from __future__ import annotations

from rest_framework import serializers

from apps.api.serializers.base import (
    CauseName,
    Id,
    List,
    Moment,
    Number,
    Schema,
    Text,
    choice,
)
from apps.api.serializers.operations import OperationRow
from apps.api.serializers.trail import Entry
from apps.poison.states import DisplayState, Outcome
from apps.poison.states import State as PoisonState

PoisonStateName = choice("PoisonState", PoisonState)
ShownState = choice("ShownState", DisplayState)
OutcomeName = choice("RedriveOutcome", Outcome)


class PoisonCounts(Schema):
    failures = Number()
    attempts = Number()
    crashes = Number()
    redrives = Number()
    recurrences = Number()


class Poison(Schema):
    id = Number()
    topic = Text()
    consumer_group = Text()
    problem = Number()
    message_id = Text(allow_null=True)
    state = PoisonStateName()
    shown = ShownState(help_text="the state as pages and `is:` name it")
    silent = serializers.BooleanField(help_text="sent, and no answer for 10 min")
    suspected = serializers.BooleanField(help_text="its consumer may be at fault")
    moved_to = Text(allow_null=True)
    given_back = serializers.BooleanField(
        help_text="its dead-letter queue has it again; moved_to is its own topic"
    )
    cause = CauseName()
    error_type = Text()
    error_message = Text()
    size = Number(help_text="bytes of the body")
    digest = Text(help_text="SHA-256 of the body, in hexadecimal")
    reuse = Number(help_text="above 0: its bookmark came before, with another body")
    counts = PoisonCounts()
    first_failed_at = Moment()
    last_failed_at = Moment()
    captured_at = Moment()
    sent_at = Moment(allow_null=True)
    dropped_at = Moment(allow_null=True)


class Failure(Schema):
    report_id = Id()
    problem = Number()
    redrive = Id(allow_null=True)
    suspected = serializers.BooleanField(help_text="as its consumer reported it")
    cause = CauseName()
    error_type = Text()
    error_message = Text()
    traceback = Text()
    cut = serializers.BooleanField(help_text="the texts are longer than shown")
    client_name = Text()
    sub_id = Text(allow_null=True)
    host = Text(allow_null=True)
    handler_version = Text(allow_null=True)
    attempts = Number()
    failures = Number()
    crashes = Number()
    dequeue_count = Number(allow_null=True)
    first_failed_at = Moment()
    failed_at = Moment()
    failed_at_claimed = Moment(
        allow_null=True, help_text="as its consumer sent it, where that is implausible"
    )
    captured_at = Moment()


class Redrive(Schema):
    id = Id()
    n = Number()
    topic = Text()
    operation = Number(allow_null=True)
    queue = Text(
        allow_null=True, help_text="the dead-letter queue it was given back to"
    )
    outcome = OutcomeName()
    detail = Text()
    bookmark = Text()
    copies = Number(help_text="how often it was sent under this id")
    claimed_at = Moment()
    sent_at = Moment(allow_null=True)
    answered_at = Moment(allow_null=True)


class PoisonDetail(Poison):
    bookmark = Text()
    header_names = serializers.ListField(
        child=Text(), help_text="of the first 200, each at most 1,024 bytes"
    )
    failures = Failure(many=True, help_text="the newest 50")
    redrives = Redrive(many=True, help_text="the newest 50")
    operations = OperationRow(many=True, help_text="that held it; the newest 50")
    audit = Entry(many=True, allow_null=True, help_text="null without audit:read")


class Poisons(List):
    results = Poison(many=True)
