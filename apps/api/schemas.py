"""What `shapes` and the contract look like, for the OpenAPI schema only.

Nothing is parsed or rendered by these; the tests hold every answer against them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.capture.services import Status
from apps.poison.states import Outcome, Shown
from apps.poison.states import State as PoisonState
from apps.reports.states import Source, State
from apps.triage.states import CONFIRMED, COUNTED, Verb
from poisonguard.contract import Cause

Text = serializers.CharField
Number = serializers.IntegerField
Moment = serializers.DateTimeField
Day = serializers.DateField
Id = serializers.UUIDField
AnyField = serializers.Field[Any, Any, Any, Any]


def _choice(name: str, values: Iterable[str]) -> type[Text]:
    """Make the field of a named set of values; one name, one component."""
    schema = {"type": "string", "enum": list(values)}
    field = type(name, (Text,), {})
    extend_schema_field(schema, component_name=name)(field)
    return field


AnswerStatus = _choice("AnswerStatus", Status)
CauseName = _choice("Cause", Cause)
PoisonStateName = _choice("PoisonState", PoisonState)
ShownState = _choice("ShownState", Shown)
OutcomeName = _choice("RedriveOutcome", Outcome)
VerbName = _choice("Verb", Verb)
SourceName = _choice("Source", Source)
RunState = _choice("RunState", State)
OperationState = _choice("OperationState", CONFIRMED)


# Bases have no docstring: it would be told of each shape made from them.
class Schema(serializers.Serializer[Any]): ...


class _Sourced(Schema):
    # Declared late: rest_framework's own classes have taken the name.
    def get_fields(self) -> dict[str, AnyField]:
        return {**super().get_fields(), "source": Text(help_text="ui, api or system")}


class FieldError(Schema):
    pointer = Text(help_text="JSON Pointer to the member or parameter")
    detail = Text()


class Problem(Schema):
    """RFC 9457: what went wrong."""

    type = Text(help_text="names the kind of problem; about:blank where HTTP says it")
    title = Text()
    status = Number()
    detail = Text()
    request_id = Text()

    def get_fields(self) -> dict[str, AnyField]:
        return {**super().get_fields(), "errors": FieldError(many=True)}


class Raised(Schema):
    type = Text()
    message = Text(allow_blank=True)
    traceback = Text(allow_blank=True)


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
    body = Text(help_text="base64", allow_blank=True)
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


class CounterReports(Schema):
    counters = CounterReport(many=True)


class Answer(Schema):
    status = AnswerStatus()
    poison = Number(required=False)
    detail = Text(required=False, help_text="why it is rejected, or changed nothing")
    pointer = Text(required=False, help_text="JSON Pointer into the member")


class Answers(Schema):
    results = Answer(many=True, help_text="one for each member, in order")


class PoisonCounts(Schema):
    failures = Number()
    attempts = Number()
    crashes = Number()
    redrives = Number()
    recurrences = Number()


class Poison(Schema):
    id = Number()
    topic = Text()
    consumer_group = Text()
    problem = Number()
    message_id = Text(allow_null=True)
    state = PoisonStateName()
    shown = ShownState(help_text="the word that pages and is: use")
    silent = serializers.BooleanField(help_text="sent, and nobody heard of for 10 min")
    moved_to = Text(allow_null=True)
    cause = CauseName()
    error_type = Text()
    error_message = Text()
    size = Number(help_text="bytes of the body")
    digest = Text(help_text="SHA-256 of the body, in hexadecimal")
    reuse = Number(help_text="above 0: its bookmark came before, with another body")
    counts = PoisonCounts()
    first_failed_at = Moment()
    last_failed_at = Moment()
    captured_at = Moment()
    sent_at = Moment(allow_null=True)
    dropped_at = Moment(allow_null=True)


class Failure(Schema):
    report_id = Id()
    problem = Number()
    redrive = Id(allow_null=True)
    cause = CauseName()
    error_type = Text()
    error_message = Text()
    traceback = Text()
    cut = serializers.BooleanField(help_text="the texts are longer than shown")
    client_name = Text()
    sub_id = Text(allow_null=True)
    host = Text(allow_null=True)
    handler_version = Text(allow_null=True)
    attempts = Number()
    failures = Number()
    crashes = Number()
    dequeue_count = Number(allow_null=True)
    first_failed_at = Moment()
    failed_at = Moment()
    failed_at_claimed = Moment(allow_null=True, help_text="by a clock not believed")
    captured_at = Moment()


class Redrive(Schema):
    id = Id()
    n = Number()
    topic = Text()
    operation = Number(allow_null=True)
    outcome = OutcomeName()
    detail = Text()
    bookmark = Text()
    copies = Number(help_text="how often it was sent under this id")
    claimed_at = Moment()
    sent_at = Moment(allow_null=True)
    answered_at = Moment(allow_null=True)


class Entry(_Sourced):
    seq = Number()
    at = Moment()
    actor = Text()
    action = Text()
    subject = Text()
    reason = Text()
    detail = serializers.DictField()
    hash = Text(help_text="SHA-256 over the previous hash and this entry")


class OperationRow(_Sourced):
    id = Number()
    verb = VerbName()
    state = OperationState()
    actor = Text()
    q = Text(allow_null=True, help_text="null when chosen one by one")
    target_topic = Text(allow_null=True)
    undo_of = Number(allow_null=True)
    reason = Text()
    total = Number()
    trouble = Text(help_text="why it is waiting; empty when it is not")
    retry_at = Moment(allow_null=True)
    as_of = Moment()
    confirmed_at = Moment()
    finished_at = Moment(allow_null=True)


class PoisonDetail(Poison):
    bookmark = Text()
    header_names = serializers.ListField(child=Text())
    failures = Failure(many=True, help_text="the newest 50")
    redrives = Redrive(many=True, help_text="the newest 50")
    operations = OperationRow(many=True, help_text="that held it; the newest 50")
    audit = Entry(many=True, allow_null=True, help_text="null without audit:read")


class ProblemCounts(Schema):
    open = Number()
    sent = Number()
    handled = Number()
    dropped = Number()


class PoisonProblem(Schema):
    id = Number()
    topic = Text()
    consumer_group = Text()
    title = Text()
    summary = Text()
    fingerprint = Text()
    version = Number(help_text="of the classifier")
    total = Number()
    counts = ProblemCounts()
    first_seen = Moment()
    last_seen = Moment()


class Ask(Schema):
    """Either `q` or `ids`."""

    verb = VerbName()
    q = Text(required=False, help_text="all that match; empty is everything")
    ids = serializers.ListField(child=Number(min_value=1), required=False)
    target_topic = Text(required=False, help_text="redrive elsewhere")


class Reason(Schema):
    reason = Text()
    count = Number()


class Named(Schema):
    name = Text()
    count = Number()


class Breakdown(Schema):
    topics = Named(many=True)
    consumer_groups = Named(many=True)


class Preview(Schema):
    token = Id()
    verb = VerbName()
    q = Text(allow_null=True)
    target_topic = Text(allow_null=True)
    as_of = Moment()
    expires_at = Moment()
    taken = serializers.BooleanField(
        help_text="false while a large selection is still being taken: look again"
    )
    total = Number()
    will_act = Number()
    newer = Number(help_text="match by now, but are not in it")
    skipped = Reason(many=True)
    breakdown = Breakdown()
    sample = Poison(many=True)


class StaleProblem(Problem):
    """A 409; `preview` is there when a preview went stale, null if none can be made."""

    preview = Preview(required=False, allow_null=True)


class Decision(Schema):
    token = Id(help_text="of a preview")
    reason = Text(required=False, help_text="a drop needs one", allow_blank=True)


class Accepted(Schema):
    id = Number(help_text="of the operation")


class Counts(Schema):
    """By standing; they always add up to the total."""

    def get_fields(self) -> dict[str, AnyField]:
        return {name: Number() for name in COUNTED}


class SingledOut(Schema):
    poison = Number()
    reason = Text()


class OperationDetail(OperationRow):
    counts = Counts()
    silent = Number(help_text="sent, and nobody heard of for 10 min")
    refused = SingledOut(many=True, help_text="the first 200")
    skipped = SingledOut(many=True, help_text="the first 200")
    rate = serializers.FloatField(allow_null=True, help_text="items a second so far")
    eta = Moment(allow_null=True)


class Verdict(Schema):
    entries = Number()
    ok = serializers.BooleanField()
    first_bad = Number(allow_null=True)
    head = Text()


class Interval(Schema):
    low = serializers.FloatField()
    high = serializers.FloatField()


class FailureRate(Schema):
    """A topic in an hour or on a whole day, in one consumer group or in all of them."""

    day = Day()
    hour = Number(allow_null=True, help_text="UTC; null of a whole day")
    topic = Text()
    sample = serializers.BooleanField(help_text="of the demonstration")
    consumer_group = Text(allow_null=True, help_text="null of all of them together")
    delivered = Number(allow_null=True, help_text="null where nobody counts it")
    failed = Number()
    uncounted = Number(help_text="of failed: no part of the rate, for want of a count")
    poisoned = Number()
    skipped = Number()
    retried = Number()
    redriven = Number()
    confirmed = Number()
    recurred = Number()
    dropped = Number()
    failure_rate = serializers.FloatField(
        allow_null=True, help_text="null where nothing was delivered"
    )
    interval = Interval(allow_null=True, help_text="Wilson's, at 95 %")
    p50_ms = Number(allow_null=True, help_text="an upper bound, as the others are")
    p95_ms = Number(allow_null=True)
    p99_ms = Number(allow_null=True)
    run = Number(help_text="that published the day")

    # Declared late: rest_framework's own classes have taken the name.
    def get_fields(self) -> dict[str, AnyField]:
        return {**super().get_fields(), "source": SourceName()}


class ReportRun(Schema):
    id = Number()
    state = RunState()
    to = Day()
    asked_by = Text()
    asked_at = Moment()
    started_at = Moment(allow_null=True)
    as_of = Moment(allow_null=True, help_text="the moment that it saw")
    finished_at = Moment(allow_null=True)
    seconds = serializers.FloatField(allow_null=True)
    rows_in = Number()
    late_rows = Number()
    trouble = Text(allow_null=True, help_text="null for a key that is for some topics")

    # Declared late: a word of Python's own.
    def get_fields(self) -> dict[str, AnyField]:
        return {**super().get_fields(), "from": Day()}


class _List(Schema):
    next = Text(
        allow_null=True, help_text="the cursor of what follows; null at the end"
    )


class Poisons(_List):
    results = Poison(many=True)


class PoisonProblems(_List):
    results = PoisonProblem(many=True)


class Operations(_List):
    results = OperationRow(many=True)


class FailureRates(_List):
    results = FailureRate(many=True)


class ReportRuns(_List):
    results = ReportRun(many=True)


class Entries(_List):
    results = Entry(many=True)
