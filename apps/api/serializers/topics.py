"""Topics, their policies, and the state of their lanes."""

from __future__ import annotations

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.api.serializers.base import (
    NAME_LIMIT,
    OPTIONAL,
    AnyField,
    Flag,
    List,
    Moment,
    Name,
    Number,
    QuerySchema,
    ReasonText,
    RequestSchema,
    Schema,
    Text,
    Visible,
    choice,
    parse_member,
)
from apps.brokers import topic_policies
from apps.brokers.models import BROKER_NAME_LIMIT
from apps.brokers.topic_policies import Policies
from apps.capture import topic_and_lane_configuration
from apps.capture.models import LaneState, Mode
from apps.capture.topic_and_lane_configuration import LaneChange
from apps.core.errors import Invalid

ModeName = choice("LaneMode", Mode)
LaneStateName = choice("LaneState", LaneState)


class TopicsQuery(QuerySchema[dict[str, Any]]):
    topic = Text(
        default=None,
        allow_blank=True,
        max_length=NAME_LIMIT,
        help_text="the name of one; all that the key sees if left out",
    )
    broker = Text(
        default=None,
        allow_blank=True,
        max_length=BROKER_NAME_LIMIT,
        help_text="the name of one",
    )


class Lane(Schema):
    """What happens with a topic's dead letters, and the state of that work."""

    mode = ModeName(source="lane.mode")
    tee_queue = Text(source="lane.tee_queue", allow_blank=True)
    paused = Flag(source="lane.paused")
    state = LaneStateName(source="lane.state")
    heard = Flag(
        source="is_heard",
        help_text="a heartbeat came within 20 s; else the state is old",
    )
    detail = Text(source="lane.detail", allow_blank=True)
    seen_at = Moment(source="lane.seen_at", allow_null=True)
    depth = Number(
        source="lane.depth", allow_null=True, help_text="of the dead-letter queue"
    )
    oldest_at = Moment(source="lane.oldest_at", allow_null=True)
    captured = Number(source="lane.captured", help_text="ever")
    rate = serializers.FloatField(
        source="lane.rate", help_text="dead letters a minute, of late"
    )
    held = Number(
        source="held_count", help_text="dead letters that cannot be captured, and stay"
    )
    error = Text(
        source="lane.error",
        allow_blank=True,
        help_text="the last one, also when it is over",
    )
    error_at = Moment(source="lane.error_at", allow_null=True)


class Policy(AnyField):
    """A policy that `apps.brokers.topic_policies` parses, under its field's name."""

    def to_internal_value(self, data: object) -> Any:
        return parse_member(topic_policies.read, str(self.field_name), data)


class Link(Policy, Text):
    """A link that is safe to follow."""


class TopicOptions(Policy, serializers.DictField):
    """Options that only one kind of broker knows."""


@extend_schema_field(
    {
        "type": "number",
        "format": "double",
        "exclusiveMinimum": 0,
        "maximum": topic_policies.LONGEST_TIMEOUT,
    }
)
class Timeout(Policy, serializers.FloatField):
    """Seconds, or a time span as hh:mm:ss."""


class RequestEndpoints(serializers.ListField):
    """Patterns of endpoints; without one, messages are no requests."""

    default_error_messages: ClassVar = {
        "not_a_list": "send a list of names of endpoints",
        "max_length": f"send at most {topic_policies.MOST_ENDPOINTS} names",
    }

    def to_internal_value(self, data: Any) -> Any:
        patterns = super().to_internal_value(data)
        return parse_member(topic_policies.read, str(self.field_name), patterns)


class _Policies(RequestSchema[topic_and_lane_configuration.TopicChange]):
    dead_letter_queue = Visible(
        required=False,
        allow_blank=True,
        allow_null=True,
        max_length=topic_policies.TEXT_LIMIT,
        help_text="null: it has none",
    )
    max_dequeue_count = Number(
        required=False,
        min_value=topic_policies.LEAST,
        max_value=topic_policies.MOST_COUNT,
    )
    visibility_timeout = Timeout(
        required=False, help_text="seconds; hh:mm:ss is accepted, too"
    )
    retention_days = Number(
        required=False,
        allow_null=True,
        min_value=topic_policies.LEAST,
        max_value=topic_policies.MOST_DAYS,
        help_text="how long the broker keeps a message; automatic skips live as long",
    )
    requeue_to = Visible(
        required=False,
        allow_blank=True,
        allow_null=True,
        max_length=topic_policies.TEXT_LIMIT,
        help_text="the topic where its messages are sent again; null: itself",
    )
    request_endpoints = RequestEndpoints(
        child=Text(min_length=1, max_length=topic_policies.ENDPOINT_PATTERN_LIMIT),
        required=False,
        allow_null=True,
        max_length=topic_policies.MOST_ENDPOINTS,
        help_text="names of endpoints, * for any text: its messages are requests for"
        " them, and its dead_letter_queue is then the topic itself, which its lane"
        " reads; none or null: they are no requests",
    )
    owner = Visible(
        required=False,
        allow_blank=True,
        allow_null=True,
        max_length=topic_policies.TEXT_LIMIT,
    )
    runbook = Link(
        required=False,
        allow_blank=True,
        allow_null=True,
        max_length=topic_policies.LINK_LIMIT,
        help_text="a link: https:// or http://",
    )
    options = TopicOptions(required=False, allow_null=True, help_text="all of them")
    mode = ModeName(**OPTIONAL)
    tee_queue = Visible(
        **OPTIONAL, allow_blank=True, help_text="where copies go in mode tee"
    )
    paused = Flag(**OPTIONAL)
    reason = ReasonText(help_text="recorded in the audit trail")

    def value_of(
        self, members: dict[str, Any]
    ) -> topic_and_lane_configuration.TopicChange:
        lane = LaneChange(
            mode=members.pop("mode"),
            tee_queue=members.pop("tee_queue") or "",
            paused=members.pop("paused"),
        )
        if lane.tee_queue and lane.mode is None:
            raise Invalid("tee_queue", "send the mode with it")
        changes = {
            name: members.pop(name) for name in topic_policies.NAMES & members.keys()
        }
        cleared = {name for name, value in changes.items() if value is None}
        changes |= {name: getattr(Policies(), name) for name in cleared}
        if lane.mode is not None and changes.get("dead_letter_queue") == "":
            remedy = "a lane needs one: name it, or leave out the mode"
            raise Invalid("dead_letter_queue", remedy)
        return topic_and_lane_configuration.TopicChange(
            policies=changes, lane=lane, **members
        )


class NewTopic(_Policies):
    dead_letter_queue = Visible(
        required=False,
        allow_blank=True,
        allow_null=True,
        max_length=topic_policies.TEXT_LIMIT,
        help_text="left out, it is that of the convention, where the kind of broker"
        " has one; null: it has none",
    )
    name = Name(help_text="as it is to be known here")
    broker = Text(min_length=1, max_length=BROKER_NAME_LIMIT, help_text="by its name")
    native_name = Visible(
        **OPTIONAL, allow_blank=True, help_text="the broker's own, if another"
    )


# The broker of an adopted topic named it: such a name may hold any character of text.
class TopicChange(_Policies):
    name = Text(min_length=1, max_length=NAME_LIMIT, help_text="which topic")


class TopicRemoval(RequestSchema[dict[str, str]]):
    name = Text(min_length=1, max_length=NAME_LIMIT, help_text="which topic")
    reason = ReasonText(help_text="recorded in the audit trail")


class Topic(Schema):
    id = Number(source="topic.pk")
    name = Text(source="topic.name")
    broker = Text(
        source="topic.broker.name",
        allow_null=True,
        help_text="null: it is only known by report",
    )
    native_name = Text(source="topic.native_name", help_text="what its broker calls it")
    dead_letter_queue = Text(source="topic.dead_letter_queue", allow_blank=True)
    max_dequeue_count = Number(source="topic.max_dequeue_count")
    visibility_timeout = serializers.FloatField(
        source="topic.visibility_timeout", help_text="seconds"
    )
    retention_days = Number(source="topic.retention_days", allow_null=True)
    requeue_to = Text(source="topic.requeue_to", allow_blank=True)
    request_endpoints = serializers.ListField(
        child=Text(), source="topic.request_endpoints"
    )
    owner = Text(source="topic.owner", allow_blank=True)
    runbook = Text(source="topic.runbook", allow_blank=True)
    options = serializers.DictField(source="topic.options")
    oversize = Number(
        source="oversize_count",
        help_text="messages that are too large to be kept here, and stay at the broker",
    )
    lane = Lane(allow_null=True, help_text="null: its dead letters are not read")


class RegisteredTopic(Topic): ...


class Topics(List):
    results = Topic(many=True)
