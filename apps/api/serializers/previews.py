"""The preview of an operation: what it would do, before it is confirmed."""

from __future__ import annotations

from rest_framework import serializers

from apps.api.serializers.base import Id, Moment, Number, Schema, Text
from apps.api.serializers.operations import VerbName
from apps.api.serializers.poisons import Poison


class Ask(Schema):
    """Either `q` or `ids`."""

    verb = VerbName()
    q = Text(required=False, help_text="all that match; empty is everything")
    ids = serializers.ListField(child=Number(min_value=1), required=False)
    target_topic = Text(required=False, help_text="redrive elsewhere")
    ordered = serializers.BooleanField(
        required=False, help_text="redrive one after the other, where an order is kept"
    )


class Reason(Schema):
    reason = Text()
    count = Number()


class Named(Schema):
    name = Text()
    count = Number()


class Elsewhere(Schema):
    failed_in = Text(help_text="the queue, as the headers name it")
    sent_to = Text(help_text="by the broker's own name")
    count = Number()


class Breakdown(Schema):
    topics = Named(many=True)
    consumer_groups = Named(many=True)


class Preview(Schema):
    token = Id()
    verb = VerbName()
    q = Text(allow_null=True)
    target_topic = Text(allow_null=True)
    ordered = serializers.BooleanField(help_text="one after the other")
    as_of = Moment()
    expires_at = Moment()
    taken = serializers.BooleanField(
        help_text="false while a large selection is still being frozen: read it again"
    )
    total = Number()
    will_act = Number()
    newer = Number(help_text="poisons that match now, but are not in the selection")
    skipped = Reason(many=True)
    breakdown = Breakdown()
    left_out = Named(
        many=True,
        allow_null=True,
        help_text="reserved headers of the target's broker, which are never sent, and"
        " how many messages bear each; null where counting took too long",
    )
    elsewhere = Elsewhere(
        many=True,
        help_text="of the first 200 that would be sent where they came from: those that"
        " failed in another queue, as their headers say",
    )
    sample = Poison(many=True)
