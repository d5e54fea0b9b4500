"""Brokers, their capabilities, and the topics that one has."""

from __future__ import annotations

from rest_framework import serializers

from apps.api.serializers.base import List, Number, Reason, Schema, Text, choice
from apps.brokers import ports
from apps.brokers.adapters import KINDS
from apps.brokers.models import BROKER_NAME_LIMIT

KindName = choice("BrokerKind", KINDS)
HeadersName = choice("Headers", ports.Headers)
OrderingName = choice("Ordering", ports.Ordering)
DurabilityName = choice("Durability", ports.Durability)
CountingName = choice("Counting", ports.Counting)


class Capabilities(Schema):
    """What one kind of broker can do; sizes in bytes, times in seconds."""

    max_message = Number()
    counts_headers = serializers.BooleanField(
        help_text="max_message bounds body and headers together"
    )
    headers = HeadersName()
    most_headers = Number(allow_null=True)
    ordering = OrderingName()
    dedupe_window = serializers.FloatField(help_text="0: there is none")
    durability = DurabilityName(help_text="what a confirmation is worth")
    delay = serializers.FloatField(
        help_text="the longest that producers may ask for; 0: there is none"
    )
    polling_interval = serializers.FloatField(
        help_text="the longest pause between two polls for dead letters, where the"
        " broker charges for each, unless a topic sets another; 0: polls cost nothing"
    )
    peeks = serializers.BooleanField(help_text="looking at dead letters is harmless")
    extends = serializers.BooleanField()
    counting = CountingName(help_text="what counts a dead letter's dequeues")
    dead_letters_itself = serializers.BooleanField()
    delivered = serializers.BooleanField(help_text="it counts deliveries")
    reserved = serializers.ListField(
        child=Text(), help_text="headers that are never sent: they would steer it"
    )


class Broker(Schema):
    id = Number()
    name = Text()
    kind = KindName()
    address = Text(help_text="env:NAME, or a note that it is sealed; never the address")
    options = serializers.DictField(help_text="what only its kind knows")
    sample = serializers.BooleanField(help_text="of the demonstration")
    topics = Number(help_text="number of topics known here that it carries")
    capabilities = Capabilities(
        allow_null=True, help_text="null where its client is not installed"
    )


class AddedBroker(Broker): ...


class NewBroker(Schema):
    name = Text(max_length=BROKER_NAME_LIMIT)
    kind = KindName()
    url = Text(
        write_only=True, help_text="the address with its secret, or env:NAME for one"
    )
    options = serializers.DictField(required=False)


class BrokerChange(Schema):
    name = Text(required=False, max_length=BROKER_NAME_LIMIT)
    url = Text(required=False, write_only=True, help_text="as of a new broker")
    options = serializers.DictField(required=False, help_text="all of them")


class BrokerRemoval(Schema):
    reason = Reason(help_text="recorded in the audit trail")


class Brokers(List):
    results = Broker(many=True)


class Reached(Schema):
    ok = serializers.BooleanField()
    detail = Text(help_text="what the broker said, or what is wrong; no secret")
    milliseconds = Number()


class FoundTopic(Schema):
    native_name = Text(help_text="the broker's own")
    depth = Number(allow_null=True, help_text="null where the broker does not count")
    dead_letter_queue = Text(allow_blank=True, help_text="empty: it has none")
    dead_letters = Number(allow_null=True)
    name = Text(allow_null=True, help_text="its name here; null: not registered")


class FoundTopics(Schema):
    results = FoundTopic(many=True)
