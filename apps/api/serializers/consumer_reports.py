"""The reports of guards and forwarders, and the answer to each member.

They describe what the SDK's contract parses, with the limits of the contract; null is
the same as a member that is left out.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from django.core.validators import RegexValidator
from rest_framework import serializers

from apps.api.list_in_request_body import MOST_MEMBERS
from apps.api.serializers.base import (
    OPTIONAL,
    ByName,
    CauseName,
    Flag,
    Id,
    Moment,
    Name,
    Number,
    Schema,
    Text,
    choice,
)
from apps.capture.intake.services import CaptureStatus
from poisonguard.contract import (
    COUNT_LIMIT,
    HEADERS_LIMIT,
    HISTOGRAM_BUCKETS,
    REDRIVE_LIMIT,
    SEQUENCE_LIMIT,
    TEXT_LIMIT,
    GuardState,
)

Count = partial(Number, min_value=0, max_value=COUNT_LIMIT)
Sequence = partial(Number, min_value=0, max_value=SEQUENCE_LIMIT)
MessageText = partial(Text, allow_blank=True, max_length=TEXT_LIMIT)
AnswerStatus = choice("AnswerStatus", CaptureStatus)
GuardStateName = choice("GuardState", GuardState)


class Digest(Text):
    def __init__(self, **options: Any) -> None:
        digits = RegexValidator(r"^[0-9a-f]{64}$")
        limits = {"min_length": 64, "max_length": 64, "validators": [digits]}
        super().__init__(**limits, **options)


class Histogram(ByName):
    names = serializers.ChoiceField([str(n) for n in range(HISTOGRAM_BUCKETS)])
    child = Count()


class Raised(Schema):
    type = Text(allow_blank=True)
    message = Text(allow_blank=True)
    traceback = Text(allow_blank=True)


class OversizeBody(Schema):
    size = Sequence(help_text="in bytes")
    sha256 = Digest(help_text="64 hexadecimal digits")


class FailureReport(Schema):
    report_id = Id()
    topic = Name()
    consumer_group = Name()
    client_name = Name()
    sub_id = Name(**OPTIONAL)
    bookmark = MessageText(
        allow_blank=False,
        min_length=1,
        help_text="the broker's own id or place of the message",
    )
    publisher = Name(**OPTIONAL)
    seq = Sequence(**OPTIONAL)
    message_id = MessageText(**OPTIONAL)
    body = Text(
        required=False,
        help_text="base64; left out only beside oversize_body",
        allow_blank=True,
    )
    oversize_body = OversizeBody(
        **OPTIONAL,
        help_text="of a body too large for a request: the report is `rejected`, and the"
        " page of the topic lists the message",
    )
    content_type = MessageText(**OPTIONAL)
    headers = serializers.ListField(
        child=serializers.ListField(
            child=Text(allow_blank=True), min_length=2, max_length=2
        ),
        max_length=HEADERS_LIMIT,
        help_text="[name, base64 value] pairs in their order",
    )
    cause = CauseName()
    exception = Raised(**OPTIONAL)
    attempts = Count()
    failures = Count()
    crashes = Count()
    dequeue_count = Count(**OPTIONAL)
    first_failed_at = Moment()
    failed_at = Moment()
    handler_version = Name(**OPTIONAL)
    host = Name(**OPTIONAL)
    redrive = MessageText(
        **OPTIONAL, help_text="value of the header x-poisonweb-redrive"
    )
    replays = Flag(
        **OPTIONAL, help_text="a reader that starts again gets the message again"
    )
    suspected = Flag(
        **OPTIONAL,
        help_text="the consumer itself may be at fault: not shared as a skip until the"
        " same report comes without it",
    )
    suspect = Flag(
        **OPTIONAL,
        help_text="false: make it a skip at once, without asking the other consumers of"
        " the group",
    )


class FailureReports(Schema):
    failures = serializers.ListField(child=FailureReport(), max_length=MOST_MEMBERS)


class Confirmation(Schema):
    redrive = Text(
        allow_blank=True,
        max_length=REDRIVE_LIMIT,
        help_text="value of the header x-poisonweb-redrive",
    )
    topic = Name()
    consumer_group = Name()
    client_name = Name()
    at = Moment()


class Confirmations(Schema):
    confirmations = serializers.ListField(child=Confirmation(), max_length=MOST_MEMBERS)


class CounterReport(Schema):
    reporter = Id(help_text="of the process")
    sequence = Sequence(help_text="with reporter, counts once")
    topic = Name()
    consumer_group = Name()
    client_name = Name()
    minute = Moment(help_text="its first moment")
    handled = Count()
    failed = Count()
    skipped = Count()
    retried = Count()
    duration_ms_hist = Histogram(help_text='log2 bucket to count: {"3": 7}')


class GuardReport(Schema):
    """The state of one guard; only its newest report counts."""

    reporter = Id(help_text="of the process")
    topic = Name()
    consumer_group = Name()
    client_name = Name()
    host = Name(**OPTIONAL)
    version = Name(**OPTIONAL, help_text="of the SDK")
    handler_version = Name(**OPTIONAL)
    state = GuardStateName()
    detail = MessageText(**OPTIONAL, help_text="the reason of the state")
    skips_age_s = serializers.FloatField(
        **OPTIONAL,
        min_value=0,
        max_value=COUNT_LIMIT,
        help_text="since its skip list was last known as current; null: it has none",
    )
    spooled = Count(help_text="reports waiting on its disk")
    suspected = Count(help_text="messages that it withholds")
    journal = Flag(help_text="it can tell a crash from a stop")
    failing_since = Moment(
        **OPTIONAL,
        help_text="while paused: the time of the first of the failures for which it"
        " paused",
    )
    at = Moment()


class CounterReports(Schema):
    counters = serializers.ListField(child=CounterReport(), max_length=MOST_MEMBERS)
    guards = serializers.ListField(
        child=GuardReport(), required=False, max_length=MOST_MEMBERS
    )


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
