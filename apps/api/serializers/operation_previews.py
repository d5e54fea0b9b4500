"""The preview of an operation: what it would do, before it is confirmed."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from rest_framework import serializers

from apps.api.serializers.base import (
    NAME_LIMIT,
    OPTIONAL,
    AnyField,
    Flag,
    Id,
    Moment,
    Number,
    QuerySchema,
    RequestSchema,
    Schema,
    Text,
    TupleSchema,
    choice,
)
from apps.api.serializers.poisons import Poison
from apps.api.serializers.search_query import QueryText
from apps.api.serializers.triage_operations import (
    OF_QUERIES,
    ItemKindChoice,
    RampState,
    RampSteps,
    VerbName,
)
from apps.core.statement_timeouts import TooSlow
from apps.poison.query_language import MAX_ID
from apps.redelivery.delivery_filters import PARAMETERS
from apps.redelivery.services import delivery_items
from apps.triage.operation_states import Verb
from apps.triage.services.pacing import HIGHEST_RATE
from apps.triage.services.selection_requests import MOST_IDS, SelectionRequest

RequestableVerb = choice("RequestableVerb", Verb)


class MessageIds(serializers.ListField):
    """Numbers of messages; one that is wrong is a fault of the whole list."""

    child = Number(min_value=1, max_value=MAX_ID)
    default_error_messages: ClassVar = {
        "invalid": "send a list of the numbers of messages",
        "too_many": f"give at most {MOST_IDS} ids, or a query",
    }

    def to_internal_value(self, data: object) -> Any:
        if not isinstance(data, list):
            self.fail("invalid")
        if len(data) > MOST_IDS:
            self.fail("too_many")
        try:
            return tuple(map(self.child.to_internal_value, data))
        except serializers.ValidationError:
            self.fail("invalid")


class DeliveriesToChoose(RequestSchema[dict[str, str]]):
    """The filters of the list of deliveries; without any, it is all of them."""

    def get_fields(self) -> dict[str, AnyField]:
        return {
            name: Text(
                **OPTIONAL, allow_blank=True, max_length=NAME_LIMIT, help_text=takes
            )
            for name, takes in PARAMETERS.items()
        }

    def value_of(self, members: dict[str, Any]) -> dict[str, str]:
        return {name: value for name, value in members.items() if value}


class Ask(RequestSchema[SelectionRequest]):
    """Either `q` or `ids`, of messages; or `deliveries`, with a verb for these."""

    verb = RequestableVerb()
    q = QueryText(
        **OPTIONAL, source="query", help_text="all that match; empty is everything"
    )
    ids = MessageIds(**OPTIONAL, max_length=MOST_IDS)
    deliveries = DeliveriesToChoose(
        **OPTIONAL, help_text="all that match; to try now, give up or restore them"
    )
    target_topic = Text(
        **OPTIONAL,
        allow_blank=True,
        max_length=NAME_LIMIT,
        help_text="redrive elsewhere; of a give back, the topic whose dead-letter queue"
        " gets its messages again",
    )
    ordered = Flag(
        **OPTIONAL, help_text="redrive one after the other, where an order is kept"
    )

    rate = Number(
        **OPTIONAL,
        min_value=1,
        max_value=HIGHEST_RATE,
        help_text="messages or deliveries a second, at most",
    )
    ramp = RampSteps(**OPTIONAL)

    def value_of(self, members: dict[str, Any]) -> SelectionRequest:
        selection = {name: each for name, each in members.items() if each is not None}
        params = selection.pop("deliveries", None)
        if params is None:
            return SelectionRequest(**selection)
        return delivery_items.selection_of_matches(
            selection.pop("verb"), params, **selection
        )


class PreviewParams(QuerySchema[uuid.UUID]):
    token = Id(help_text="of a preview")

    def value_of(self, members: dict[str, Any]) -> uuid.UUID:
        token: uuid.UUID = members["token"]
        return token


class Reason(TupleSchema):
    reason = Text()
    count = Number()


class Named(TupleSchema):
    name = Text()
    count = Number()


class UnlessSlow(serializers.ListSerializer[Any]):
    """A list that is null where counting took too long."""

    def get_attribute(self, instance: Any) -> Any:
        rows = super().get_attribute(instance)
        return None if isinstance(rows, TooSlow) else rows


class Elsewhere(Schema):
    failed_in = Text(source="origin", help_text="the queue, as the headers name it")
    sent_to = Text(source="topic", help_text="by the broker's own name")
    count = Number(source="number")


class SkipByRule(Schema):
    id = Number(source="skip.pk")
    topic = Text(source="skip.topic.name", help_text="whose consumers skip")
    handler_version = Text(
        source="skip.handler_version",
        allow_null=True,
        help_text="the only one that skips; null: all versions",
    )
    count = Number(source="number", help_text="messages that it is the first to match")


class SkippedAgain(Schema):
    count = Number(source="number", help_text="messages that a rule matches")
    looked_at = Number(help_text="messages that were tried, of the last 1,000")
    unread = Number(help_text="of the last 1,000, too large to try or no time left")
    skips = SkipByRule(
        source="most_frequent",
        many=True,
        help_text="the 20 that match most; remove them before a requeue",
    )

    def get_attribute(self, _: Any) -> Any:
        return self.context["skipped_again"]


class RedirectedTopic(TupleSchema):
    topic = Text()
    to = Text()


class Breakdown(Schema):
    topics = Named(source="by_topic", many=True)
    consumer_groups = Named(source="by_consumer", many=True)
    other_topics = Number(
        source="topics.others", help_text="items of the topics that are not listed"
    )
    other_consumer_groups = Number(
        source="breakdown.consumers.others",
        help_text="items of the consumer groups that are not listed",
    )


class Preview(Schema):
    token = Id(source="operation.token")
    items = ItemKindChoice(source="operation.kind", help_text="what they are")
    verb = VerbName(source="operation.verb")
    q = Text(source="operation.query", allow_null=True, help_text=OF_QUERIES)
    target_topic = Text(source="operation.target_topic.name", allow_null=True)
    ordered = Flag(source="operation.ordered", help_text="one after the other")
    rate = Number(source="operation.rate", allow_null=True)
    ramp = RampState(source="operation.ramp", allow_null=True)
    as_of = Moment(source="operation.created_at")
    expires_at = Moment(source="operation.expires_at")
    taken = Flag(
        source="operation.is_taken",
        help_text="false while a large selection is still being frozen: read it again",
    )
    total = Number(source="operation.total")
    will_act = Number()
    newer = Number(help_text="items that match now, but are not in the selection")
    skipped = Reason(many=True, help_text="the 100 most frequent reasons")
    breakdown = Breakdown(source="*")
    endpoints = Named(source="by_endpoint", many=True, help_text="of deliveries")
    left_out = UnlessSlow(
        child=Named(),
        allow_null=True,
        help_text="reserved headers of the target's broker, which are never sent, and"
        " how many messages bear each; null where counting took too long",
    )
    skipped_again = SkippedAgain(
        allow_null=True,
        help_text="of a redrive, messages that consumers would pass over again, because"
        " a skip by a rule is active; null where matching took too long, and for a key"
        " without skips:read",
    )
    redirects = RedirectedTopic(
        source="redirected_topics",
        many=True,
        help_text="topics that their policy requeues to another topic",
    )
    elsewhere = Elsewhere(
        many=True,
        help_text="of the first 200 that would be sent where they came from: those that"
        " failed in another queue, as their headers say",
    )
    without_sender = serializers.ListField(
        child=Text(),
        help_text="topics that would get messages and have no broker, so that these"
        " will be refused; the first 100. Rows of an outbox are sent on its page",
    )
    sample = Poison(many=True, help_text="messages; of deliveries, none")
