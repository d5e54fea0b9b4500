"""IN: the reports of guards and forwarders, and the answer to each member."""

from __future__ import annotations

from rest_framework import serializers

from apps.api.serializers.base import (
    CauseName,
    Id,
    Moment,
    Number,
    Schema,
    Text,
    choice,
)
from apps.capture.intake.services import CaptureStatus
from poisonguard.contract import GuardState

AnswerStatus = choice("AnswerStatus", CaptureStatus)
GuardStateName = choice("GuardState", GuardState)


class Raised(Schema):
    type = Text()
    message = Text(allow_blank=True)
    traceback = Text(allow_blank=True)


class OversizeBody(Schema):
    size = Number(min_value=0, help_text="in bytes")
    sha256 = Text(help_text="64 hexadecimal digits")


class FailureReport(Schema):
    report_id = Id()
    topic = Text()
    consumer_group = Text()
    client_name = Text()
    sub_id = Text(required=False)
    bookmark = Text(help_text="the broker's own id or place of the message")
    publisher = Text(required=False)
    seq = Number(required=False, min_value=0)
    message_id = Text(required=False)
    body = Text(
        required=False,
        help_text="base64; left out only beside oversize_body",
        allow_blank=True,
    )
    oversize_body = OversizeBody(
        required=False,
        help_text="of a body too large for a request: the report is `rejected`, and the"
        " page of the topic lists the message",
    )
    content_type = Text(required=False)
    headers = serializers.ListField(
        child=serializers.ListField(child=Text(), min_length=2, max_length=2),
        help_text="[name, base64 value] pairs in their order",
    )
    cause = CauseName()
    exception = Raised(required=False)
    attempts = Number(min_value=0)
    failures = Number(min_value=0)
    crashes = Number(min_value=0)
    dequeue_count = Number(required=False, min_value=0)
    first_failed_at = Moment()
    failed_at = Moment()
    handler_version = Text(required=False)
    host = Text(required=False)
    redrive = Text(required=False, help_text="value of the header x-poisonweb-redrive")
    replays = serializers.BooleanField(
        required=False, help_text="a reader that starts again gets the message again"
    )
    suspected = serializers.BooleanField(
        required=False,
        help_text="the consumer itself may be at fault: not shared as a skip until the"
        " same report comes without it",
    )


class FailureReports(Schema):
    failures = FailureReport(many=True)


class Confirmation(Schema):
    redrive = Text(help_text="value of the header x-poisonweb-redrive")
    topic = Text()
    consumer_group = Text()
    client_name = Text()
    at = Moment()


class Confirmations(Schema):
    confirmations = Confirmation(many=True)


class CounterReport(Schema):
    reporter = Id(help_text="of the process")
    sequence = Number(min_value=0, help_text="with reporter, counts once")
    topic = Text()
    consumer_group = Text()
    client_name = Text()
    minute = Moment()
    handled = Number(min_value=0)
    failed = Number(min_value=0)
    skipped = Number(min_value=0)
    retried = Number(min_value=0)
    duration_ms_hist = serializers.DictField(
        child=Number(min_value=0), help_text='log2 bucket to count: {"3": 7}'
    )


class GuardReport(Schema):
    """The state of one guard; only its newest report counts."""

    reporter = Id(help_text="of the process")
    topic = Text()
    consumer_group = Text()
    client_name = Text()
    host = Text(required=False)
    version = Text(required=False, help_text="of the SDK")
    handler_version = Text(required=False)
    state = GuardStateName()
    detail = Text(required=False, allow_blank=True, help_text="the reason of the state")
    skips_age_s = serializers.FloatField(
        required=False,
        allow_null=True,
        min_value=0,
        help_text="since its skip list was last known as current; null: it has none",
    )
    spooled = Number(min_value=0, help_text="reports waiting on its disk")
    suspected = Number(min_value=0, help_text="messages that it withholds")
    journal = serializers.BooleanField(help_text="it can tell a crash from a stop")
    at = Moment()


class CounterReports(Schema):
    counters = CounterReport(many=True)
    guards = GuardReport(many=True, required=False)


class Answer(Schema):
    status = AnswerStatus()
    poison = Number(required=False)
    detail = Text(required=False, help_text="why it is rejected, or changed nothing")
    pointer = Text(required=False, help_text="JSON Pointer into the member")


class Answers(Schema):
    results = Answer(many=True, help_text="one for each member, in order")


class CounterAnswers(Answers):
    guards = Answer(
        many=True, required=False, help_text="one for each of `guards`, if any came"
    )
