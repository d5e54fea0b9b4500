"""Operations, and their progress."""

from __future__ import annotations

from rest_framework import serializers

from apps.api.serializers.base import (
    AnyField,
    Id,
    List,
    Moment,
    Number,
    Reason,
    Schema,
    Sourced,
    Text,
    choice,
)
from apps.triage.states import CONFIRMED, COUNTED, Verb

VerbName = choice("Verb", Verb)
OperationState = choice("OperationState", CONFIRMED)


class Decision(Schema):
    token = Id(help_text="of a preview")
    reason = Reason(help_text="a drop needs one")


class Accepted(Schema):
    id = Number(help_text="of the operation")


class OperationRow(Sourced):
    id = Number()
    verb = VerbName()
    state = OperationState()
    actor = Text()
    q = Text(allow_null=True, help_text="null when chosen one by one")
    target_topic = Text(allow_null=True)
    ordered = serializers.BooleanField(help_text="one after the other")
    undo_of = Number(allow_null=True)
    reason = Text()
    total = Number()
    trouble = Text(help_text="why it is waiting; empty when it is not")
    retry_at = Moment(allow_null=True)
    as_of = Moment()
    confirmed_at = Moment()
    finished_at = Moment(allow_null=True)


class Counts(Schema):
    """By standing; they always add up to the total."""

    def get_fields(self) -> dict[str, AnyField]:
        return {name: Number() for name in COUNTED}


class SingledOut(Schema):
    poison = Number()
    reason = Text()


class OperationDetail(OperationRow):
    counts = Counts()
    acts_on = Number(help_text="the total without the skipped ones")
    acted = Number(help_text="done: sent, given back, dropped or restored")
    given_back_to = Text(
        allow_null=True, help_text="the dead-letter queue, of a give back"
    )
    silent = Number(help_text="sent, and no answer for 10 min")
    refused = SingledOut(many=True, help_text="the first 200")
    skipped = SingledOut(many=True, help_text="the first 200")
    rate = serializers.FloatField(allow_null=True, help_text="items a second so far")
    eta = Moment(allow_null=True)


class Operations(List):
    results = OperationRow(many=True)
