"""Topics, their policies, and the state of their lanes."""

from __future__ import annotations

from rest_framework import serializers

from apps.api.serializers.base import List, Moment, Number, Reason, Schema, Text, choice
from apps.capture.models import LaneState, Mode

ModeName = choice("LaneMode", Mode)
LaneStateName = choice("LaneState", LaneState)


class Lane(Schema):
    """What happens with a topic's dead letters, and the state of that work."""

    mode = ModeName()
    tee_queue = Text(allow_blank=True)
    paused = serializers.BooleanField()
    state = LaneStateName()
    heard = serializers.BooleanField(
        help_text="a heartbeat came within 20 s; else the state is old"
    )
    detail = Text(allow_blank=True)
    seen_at = Moment(allow_null=True)
    depth = Number(allow_null=True, help_text="of the dead-letter queue")
    oldest_at = Moment(allow_null=True)
    captured = Number(help_text="ever")
    rate = serializers.FloatField(help_text="dead letters a minute, of late")
    held = Number(help_text="dead letters that cannot be captured, and stay")
    error = Text(allow_blank=True, help_text="the last one, also when it is over")
    error_at = Moment(allow_null=True)


class _Policies(Schema):
    dead_letter_queue = Text(required=False, allow_blank=True)
    max_dequeue_count = Number(required=False, min_value=1)
    visibility_timeout = serializers.FloatField(
        required=False, help_text="seconds; hh:mm:ss is accepted, too"
    )
    retention_days = Number(
        required=False,
        allow_null=True,
        min_value=1,
        help_text="how long the broker keeps a message; automatic skips live as long",
    )
    owner = Text(required=False, allow_blank=True, max_length=200)
    runbook = Text(
        required=False, allow_blank=True, help_text="a link: https:// or http://"
    )
    options = serializers.DictField(required=False, help_text="all of them")
    mode = ModeName(required=False)
    tee_queue = Text(required=False, help_text="where copies go in mode tee")
    paused = serializers.BooleanField(required=False)
    reason = Reason(help_text="recorded in the audit trail")


class NewTopic(_Policies):
    dead_letter_queue = Text(
        required=False,
        allow_blank=True,
        allow_null=True,
        help_text="left out, it is that of the convention, where the kind of broker"
        " has one; null: it has none",
    )
    name = Text(help_text="as it is to be known here")
    broker = Text(help_text="by its name")
    native_name = Text(required=False, help_text="the broker's own, if another")


class TopicChange(_Policies):
    name = Text(help_text="which topic")


class TopicRemoval(Schema):
    name = Text(help_text="which topic")
    reason = Reason(help_text="recorded in the audit trail")


class Topic(Schema):
    id = Number()
    name = Text()
    broker = Text(allow_null=True, help_text="null: it is only known by report")
    native_name = Text(help_text="what its broker calls it")
    dead_letter_queue = Text(allow_blank=True)
    max_dequeue_count = Number()
    visibility_timeout = serializers.FloatField(help_text="seconds")
    retention_days = Number(allow_null=True)
    owner = Text(allow_blank=True)
    runbook = Text(allow_blank=True)
    options = serializers.DictField()
    oversize = Number(
        help_text="messages that are too large to be kept here, and stay at the broker"
    )
    lane = Lane(allow_null=True, help_text="null: its dead letters are not read")


class RegisteredTopic(Topic): ...


class Topics(List):
    results = Topic(many=True)
