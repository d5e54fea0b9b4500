"""Operations, and their progress."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from apps.api.serializers.base import (
    AnyField,
    Flag,
    Id,
    List,
    Moment,
    Number,
    ReasonText,
    RequestSchema,
    Schema,
    Sourced,
    Text,
    TextOrNull,
    TupleSchema,
    choice,
    within,
)
from apps.triage.states import CONFIRMED, COUNTED, Verb

VerbName = choice("Verb", Verb)
OperationStateName = choice("OperationState", CONFIRMED)


class Decision(RequestSchema[dict[str, Any]]):
    # A target has no effect here, only in the preview: it is refused.
    token = Id(help_text="of a preview")
    reason = ReasonText(help_text="a drop needs one")


class Accepted(Schema):
    id = Number(help_text="of the operation")


class OperationRow(Sourced):
    id = Number()
    verb = VerbName()
    state = OperationStateName()
    actor = Text()
    q = Text(source="query", allow_null=True, help_text="null when chosen one by one")
    target_topic = Text(source="target_topic.name", allow_null=True)
    ordered = Flag(help_text="one after the other")
    undo_of = Number(source="undo_of_id", allow_null=True)
    reason = Text()
    total = Number()
    trouble = Text(help_text="why it is waiting; empty when it is not")
    retry_at = Moment(allow_null=True)
    as_of = Moment(source="created_at")
    confirmed_at = Moment()
    finished_at = Moment(allow_null=True)


class Counts(Schema):
    """By standing; they always add up to the total."""

    def get_fields(self) -> dict[str, AnyField]:
        return {name: Number() for name in COUNTED}


class SingledOut(TupleSchema):
    poison = Number()
    reason = Text()


class OperationDetail(OperationRow):
    counts = Counts(source="progress.tally.counts")
    acts_on = Number(
        source="progress.tally.acts_on", help_text="the total without the skipped ones"
    )
    acted = Number(
        source="progress.tally.acted",
        help_text="done: sent, given back, dropped or restored",
    )
    given_back_to = TextOrNull(
        source="progress.operation.given_back_to",
        help_text="the dead-letter queue, of a give back",
    )
    silent = Number(
        source="progress.silent", help_text="sent, and no answer for 10 min"
    )
    refused = SingledOut(many=True, help_text="the first 200")
    skipped = SingledOut(many=True, help_text="the first 200")
    rate = serializers.FloatField(
        source="progress.pace.rate",
        allow_null=True,
        help_text="items a second so far",
    )
    eta = Moment(source="progress.eta", allow_null=True)

    def get_fields(self) -> dict[str, AnyField]:
        row = within("progress.operation", OperationRow().get_fields())
        return {**super().get_fields(), **row}


class Operations(List):
    results = OperationRow(many=True)
