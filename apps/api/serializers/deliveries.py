"""Deliveries, their attempts, and decisions about them."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from rest_framework import serializers

from apps.api.serializers.audit_trail import Entry
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
    Text,
    TextOrNull,
    choice,
    within,
)
from apps.core.text_cleaning import readable
from apps.redelivery.endpoint_and_delivery_choices import AttemptOutcome, DeliveryState
from apps.redelivery.services.delivery_decisions import MOST_AT_ONCE, WHY_GIVEN_UP

DeliveryStateName = choice("DeliveryState", DeliveryState)
AttemptOutcomeName = choice("AttemptOutcome", AttemptOutcome)


class ReadableBytes(Text):
    """Bytes of an answer as text; what is no UTF-8 is replaced."""

    def to_representation(self, value: Any) -> str:
        return readable(value)


class DeliveryRow(Schema):
    id = Id()
    endpoint = Text(source="endpoint.name")
    state = DeliveryStateName()
    method = Text()
    path = ReadableBytes(help_text="below the endpoint, with its query")
    size = Number(help_text="bytes of the body")
    caller = Text(help_text="who called the gateway")
    idempotency_key = Text(help_text="that each attempt bears")
    repeatable = Flag(
        source="is_repeatable",
        help_text="it is tried again although it may have arrived",
    )
    retry_count = Number(help_text="its failures, the first one included")
    attempts = Number(help_text="the calls that were begun")
    accepted_at = Moment()
    expires_at = Moment(allow_null=True)
    due_at = Moment(help_text="of its next try, while it waits")
    last_status = Number(allow_null=True, help_text="null: there was no answer")
    last_error = Text(allow_blank=True)
    cause = TextOrNull(help_text="why it is not tried again")
    finished_at = Moment(allow_null=True)
    poison = Number(allow_null=True, help_text="the message that it became")


class Attempt(Schema):
    number = Number(help_text="from 1")
    outcome = AttemptOutcomeName()
    begun_at = Moment()
    ended_at = Moment(allow_null=True)
    status = Number(allow_null=True, help_text="null: there was no answer")
    detail = Text(allow_blank=True)
    late_at = Moment(
        allow_null=True, help_text="when an answer came after its time; kept, no more"
    )
    late_status = Number(allow_null=True)


class DeliveryDetail(DeliveryRow):
    header_names = serializers.ListField(
        child=Text(), help_text="of the first 200, each at most 1,024 bytes"
    )
    attempt_list = Attempt(many=True, help_text="the newest 50")
    audit = Entry(
        source="entries",
        many=True,
        allow_null=True,
        help_text="null without audit:read, or where finding them takes too long",
    )

    def get_fields(self) -> dict[str, AnyField]:
        row = within("delivery", DeliveryRow().get_fields())
        return {**super().get_fields(), **row}


class Deliveries(List):
    results = DeliveryRow(many=True)


class IdList(serializers.ListField):
    """IdList of deliveries."""

    default_error_messages: ClassVar = dict.fromkeys(
        ("not_a_list", "null", "required", "min_length", "max_length", "empty"),
        f"send a list of 1 to {MOST_AT_ONCE:,} ids of deliveries",
    )


class DeliveryDecision(RequestSchema[dict[str, Any]]):
    ids = IdList(child=Id(), min_length=1, max_length=MOST_AT_ONCE)
    reason = ReasonText(help_text="recorded in the audit trail")

    def value_of(self, members: dict[str, Any]) -> dict[str, Any]:
        ids: list[uuid.UUID] = members["ids"]
        return {**members, "ids": set(ids)}


class GiveUpDecision(DeliveryDecision):
    reason = ReasonText(
        default=serializers.empty,
        allow_blank=False,
        allow_null=False,
        error_messages=dict.fromkeys(("required", "null", "blank"), WHY_GIVEN_UP),
        help_text="why they are given up; recorded in the audit trail",
    )


class DecisionResult(Schema):
    total = Number(help_text="different ids of the request")
    acted_on = Number(
        help_text="deliveries that changed; the others are not here, or in a state"
        " that does not allow it"
    )
