"""Brokers, their capabilities, and the topics that one has."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers

from apps.api.list_in_request_body import members_of
from apps.api.serializers.base import (
    OPTIONAL,
    Flag,
    List,
    Name,
    Number,
    ReasonText,
    RequestSchema,
    Schema,
    Text,
    Visible,
    choice,
    parse_member,
)
from apps.brokers import adapter_contract, sealed_addresses, topic_policies
from apps.brokers.adapters import KINDS
from apps.brokers.models import BROKER_NAME_LIMIT
from apps.brokers.services.broker_registration import URL_LIMIT
from apps.core.text_cleaning import readable, storable

KindName = choice("BrokerKind", KINDS)
HeadersName = choice("Headers", adapter_contract.Headers)
OrderingName = choice("Ordering", adapter_contract.Ordering)
DurabilityName = choice("Durability", adapter_contract.Durability)
CountingName = choice("Counting", adapter_contract.Counting)


class Address(Visible):
    """A broker's address as a person enters it; an answer never shows it."""

    default_error_messages: ClassVar = dict.fromkeys(
        ("invalid", "null", "required", "blank"),
        "send the broker's address, or env:NAME",
    )

    def __init__(self, **options: Any) -> None:
        ours = {"max_length": URL_LIMIT, "write_only": True}
        super().__init__(**{**ours, **options})


class StoredAddress(Text):
    """The place where a broker's address is stored."""

    def to_representation(self, value: str) -> str:
        return sealed_addresses.storage_of(value)


class BrokerOptions(serializers.DictField):
    """Options of a broker; a refusal quotes those of its kind, if that is sent."""

    def to_internal_value(self, data: object) -> dict[str, object]:
        members: dict[str, Any] = self.root.initial_data
        kind = members.get("kind")
        adapter = KINDS.get(kind) if isinstance(kind, str) else None
        example = adapter.broker_options if adapter else ""
        return parse_member(topic_policies.read_options, data, example=example)


class HeaderNames(serializers.ListField):
    """Names of headers, sorted, as text."""

    def to_representation(self, names: Any) -> list[str]:
        return sorted(readable(name) for name in names)


class BrokersOwn(Text):
    """A name by the broker itself; characters that are no text are replaced."""

    def to_representation(self, value: str) -> str:
        return storable(value)


class Capabilities(Schema):
    """What one kind of broker can do; sizes in bytes, times in seconds."""

    max_message = Number()
    counts_headers = Flag(help_text="max_message bounds body and headers together")
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
    peeks = Flag(help_text="looking at dead letters is harmless")
    extends = Flag()
    counting = CountingName(help_text="what counts a dead letter's dequeues")
    dead_letters_itself = Flag()
    delivered = Flag(help_text="it counts deliveries")
    reserved = HeaderNames(
        child=Text(), help_text="headers that are never sent: they would steer it"
    )


class Broker(Schema):
    id = Number(source="broker.pk")
    name = Text(source="broker.name")
    kind = KindName(source="broker.kind")
    address = StoredAddress(
        source="broker.url",
        help_text="env:NAME, or a note that it is sealed; never the address",
    )
    options = serializers.DictField(
        source="broker.options", help_text="what only its kind knows"
    )
    sample = Flag(source="broker.is_sample", help_text="of the demonstration")
    topics = Number(help_text="number of topics known here that it carries")
    capabilities = Capabilities(
        allow_null=True, help_text="null where its client is not installed"
    )


class AddedBroker(Broker): ...


class NewBroker(RequestSchema[dict[str, Any]]):
    name = Name(max_length=BROKER_NAME_LIMIT)
    kind = KindName()
    url = Address(help_text="the address with its secret, or env:NAME for one")
    options = BrokerOptions(**OPTIONAL)

    def value_of(self, members: dict[str, Any]) -> dict[str, Any]:
        return {**members, "options": members["options"] or {}}


class BrokerChange(RequestSchema[dict[str, Any]]):
    name = Name(required=False, max_length=BROKER_NAME_LIMIT)
    url = Address(required=False, help_text="as of a new broker")
    options = BrokerOptions(**OPTIONAL, help_text="all of them")

    def to_internal_value(self, data: object) -> Any:
        if "kind" in members_of(data):
            remedy = "it stays what it is: add another broker"
            raise serializers.ValidationError({"kind": remedy})
        return super().to_internal_value(data)


class BrokerRemoval(RequestSchema[dict[str, str]]):
    reason = ReasonText(help_text="recorded in the audit trail")


class Brokers(List):
    results = Broker(many=True)


class Reached(Schema):
    ok = Flag()
    detail = Text(help_text="what the broker said, or what is wrong; no secret")
    milliseconds = Number()


class FoundTopic(Schema):
    native_name = BrokersOwn(source="topic.name", help_text="the broker's own")
    depth = Number(
        source="topic.depth",
        allow_null=True,
        help_text="null where the broker does not count",
    )
    dead_letter_queue = BrokersOwn(
        source="topic.dead_letter_queue",
        allow_blank=True,
        help_text="empty: it has none",
    )
    dead_letters = Number(source="topic.dead_letters", allow_null=True)
    name = Text(allow_null=True, help_text="its name here; null: not registered")


class FoundTopics(Schema):
    results = FoundTopic(many=True)
