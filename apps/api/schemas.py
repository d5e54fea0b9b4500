"""What `shapes` and the contract look like, for the OpenAPI schema only.

Nothing is parsed or rendered by these; the tests hold every answer against them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.bookmarks.runs import LAST
from apps.bookmarks.services import settling
from apps.bookmarks.states import Source as KeptBy
from apps.bookmarks.wire import MOST_RUNS
from apps.brokers import ports
from apps.brokers.adapters import KINDS
from apps.capture.models import GuardState, LaneState, Mode
from apps.capture.services import Status
from apps.poison.states import Outcome, Shown
from apps.poison.states import State as PoisonState
from apps.reports.states import Source, State
from apps.triage.states import CONFIRMED, COUNTED, Verb
from poisonguard.contract import Cause, MatcherKind

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
GuardStateName = _choice("GuardState", GuardState)
VerbName = _choice("Verb", Verb)
SourceName = _choice("Source", Source)
RunState = _choice("RunState", State)
SettledStatus = _choice("SettledStatus", settling.Status)
PositionSource = _choice("PositionSource", KeptBy)
MatcherKindName = _choice("MatcherKind", MatcherKind)
AppliedStatus = _choice("AppliedStatus", ("ok", "rejected"))
KindName = _choice("BrokerKind", KINDS)
HeadersName = _choice("Headers", ports.Headers)
OrderingName = _choice("Ordering", ports.Ordering)
DurabilityName = _choice("Durability", ports.Durability)
CountingName = _choice("Counting", ports.Counting)
ModeName = _choice("LaneMode", Mode)
LaneStateName = _choice("LaneState", LaneState)
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
    replays = serializers.BooleanField(
        required=False, help_text="who reads the topic anew is handed it again"
    )
    suspected = serializers.BooleanField(
        required=False,
        help_text="the consumer itself may be what is sick: not shared as a skip until"
        " the same report comes without it",
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
    """How one guard is by now; its newest word is the one that counts."""

    reporter = Id(help_text="of the process")
    topic = Text()
    consumer_group = Text()
    client_name = Text()
    host = Text(required=False)
    version = Text(required=False, help_text="of the SDK")
    handler_version = Text(required=False)
    state = GuardStateName()
    detail = Text(required=False, allow_blank=True, help_text="why it is so")
    skips_age_s = serializers.FloatField(
        required=False,
        allow_null=True,
        min_value=0,
        help_text="since its skip list was known to be current; null: it has none",
    )
    spooled = Number(min_value=0, help_text="reports that wait on its disk")
    suspected = Number(min_value=0, help_text="messages that it withholds")
    journal = serializers.BooleanField(help_text="it can tell a crash from a stop")
    at = Moment()


class CounterReports(Schema):
    counters = CounterReport(many=True)
    guards = GuardReport(many=True, required=False)


class Matcher(Schema):
    kind = MatcherKindName()

    def get_fields(self) -> dict[str, AnyField]:
        value = serializers.JSONField(
            help_text="a bookmark, a message id or a SHA-256 in hexadecimal; of a rule"
            " an object of header or pointer (RFC 6901), and equals"
        )
        return {**super().get_fields(), "value": value}


class NewSkip(Schema):
    topic = Text()
    consumer_group = Text(required=False, help_text="all groups if left out")
    matcher = Matcher()
    handler_version = Text(required=False, help_text="all versions if left out")
    expires_at = Moment(required=False)
    reason = Text(required=False)
    poison = Number(required=False, help_text="the message that it is made for")
    everything = serializers.BooleanField(
        required=False, help_text="also a rule that matches every recent message"
    )


class Skip(Schema):
    id = Number()
    topic = Text()
    matcher = Matcher()
    consumer_group = Text(allow_null=True, help_text="null: all groups")
    handler_version = Text(allow_null=True, help_text="null: all versions")
    redrive = Id(
        allow_null=True,
        help_text="the redrive whose failing made it: that one does not pass it",
    )
    expires_at = Moment(allow_null=True)
    reason = Text()
    by = Text()
    at = Moment()
    poison = Number(allow_null=True)


class AddedSkip(Skip): ...


class Skips(Schema):
    epoch = Text(help_text="names this store; another one has other revisions")
    revision = Number(help_text="follow the stream after <epoch>.<revision>")
    skips = Skip(many=True)


class Unskip(Schema):
    reason = Text(required=False)


class Applied(Schema):
    skip = Number()
    consumer_group = Text()
    client_name = Text()
    count = Number(min_value=0)
    last_at = Moment()
    report = Id(required=False, help_text="names this word, so that it counts once")


class AppliedReports(Schema):
    applied = Applied(many=True)


class AppliedAnswer(Schema):
    status = AppliedStatus()
    detail = Text(required=False)
    pointer = Text(required=False)


class AppliedAnswers(Schema):
    results = AppliedAnswer(many=True, help_text="one for each member, in order")


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
    suspected = serializers.BooleanField(help_text="its consumer may be what is sick")
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
    suspected = serializers.BooleanField(help_text="as its consumer told it")
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
    ordered = serializers.BooleanField(help_text="one after the other")
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
    ordered = serializers.BooleanField(
        required=False, help_text="redrive one after the other, where an order is kept"
    )


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
    ordered = serializers.BooleanField(help_text="one after the other")
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


class Holder(Schema):
    """Without a sub id, or a topic, all that the client has."""

    client_name = Text()
    sub_id = Text(required=False)
    topic = Text(required=False)
    replays = serializers.BooleanField(
        required=False,
        help_text="a reader that starts anew is handed old messages again; true if"
        " left out",
    )


class SettledRun(serializers.ListField):
    """The first and the last number of a run, both settled."""

    def __init__(self, **_: object) -> None:
        number = Number(min_value=0, max_value=LAST)
        super().__init__(child=number, min_length=2, max_length=2)


class OpenedPosition(Schema):
    """One publisher's mark; -1 is the place before its first message."""

    position = Number(help_text="its id")
    sub_id = Text()
    topic = Text()
    publisher = Text(allow_blank=True)
    processed = Number(help_text="the watermark: all up to it is settled")
    persisted = Number(allow_null=True, help_text="null where nobody tracks it")
    received = Number(allow_null=True, help_text="the highest that was handed out")
    settled = serializers.ListField(
        child=SettledRun(), help_text="what is settled above the watermark"
    )
    resume = Number(help_text="begin after it: the lesser of processed and persisted")
    bookmark = Text(
        allow_blank=True, help_text="of the watermark, or of a place before it"
    )


class Opened(Schema):
    epoch = Number(help_text="to settle under")
    positions = OpenedPosition(
        many=True, help_text="one for each publisher heard of so far"
    )


class PositionUpdate(Schema):
    client_name = Text()
    sub_id = Text()
    topic = Text()
    epoch = Number(min_value=1, help_text="that opening the position gave")
    publisher = Text(required=False, allow_blank=True)
    received = Number(required=False, min_value=0, max_value=LAST)
    settled = serializers.ListField(
        child=SettledRun(), required=False, max_length=MOST_RUNS
    )
    persisted = Number(required=False, min_value=0, max_value=LAST)
    bookmark = Text(required=False, help_text="of the highest number in `settled`")


class PositionUpdates(Schema):
    updates = PositionUpdate(many=True)


class PositionAnswer(Schema):
    status = SettledStatus()
    detail = Text(required=False, help_text="what to do, unless it is ok")
    pointer = Text(required=False, help_text="JSON Pointer into the member")
    pressure = serializers.FloatField(
        required=False,
        help_text="from 0.75 on: how much of what a position can hold is holes",
    )


class PositionAnswers(Schema):
    results = PositionAnswer(many=True, help_text="one for each member, in order")


class Mark(Schema):
    publisher = Text(allow_blank=True)
    processed = Number(help_text="-1 before anything is settled")
    bookmark = Text(allow_blank=True)
    received = Number(allow_null=True)
    persisted = Number(allow_null=True)
    ahead = Number(help_text="runs that are settled above the watermark")
    head = Number(allow_null=True, help_text="null where no broker tells it")
    lag = Number(allow_null=True, help_text="messages; null where nobody can count")
    pending = Number(allow_null=True)
    settled_at = Moment(allow_null=True)


class _PositionRow(Schema):
    id = Number()
    topic = Text()
    consumer_group = Text(allow_blank=True)
    client_name = Text(allow_blank=True)
    sub_id = Text(allow_blank=True)
    epoch = Number(help_text="0 where the broker keeps it")
    observed_at = Moment()
    moved_at = Moment()
    marks = Mark(many=True)


class Position(_PositionRow):
    # Declared late: rest_framework's own classes have taken the name.
    def get_fields(self) -> dict[str, AnyField]:
        return {**super().get_fields(), "source": PositionSource()}


class MoveAsk(Schema):
    """One of `to`, `at`, `by`, `other` and `move` says where to."""

    to = serializers.DictField(
        child=Number(min_value=-1, max_value=LAST),
        required=False,
        help_text="publisher to number; -1 is the place before the first",
    )
    at = Moment(required=False, help_text="where it stood then, with the zone")
    by = Number(required=False, help_text="so many numbers on; back if negative")
    other = Number(required=False, help_text="the id of the position to copy")
    move = Number(required=False, help_text="restore what was before this move")
    reason = Text(required=False, help_text="needed unless it is a dry run")
    fence = serializers.BooleanField(
        required=False, help_text="even if the holder settled within 2 minutes"
    )
    dry_run = serializers.BooleanField(required=False)


class MoveStep(Schema):
    publisher = Text(allow_blank=True)
    before = Number()
    after = Number()
    replayed = Number(help_text="numbers that were settled and come again")
    passed_over = Number(help_text="numbers that were not settled and never come")
    beyond = serializers.BooleanField(help_text="further than anybody has seen")
    poison_replayed = serializers.ListField(child=Number())
    poison_passed_over = serializers.ListField(child=Number())


class MoveDone(Schema):
    id = Number(allow_null=True, help_text="of the move; null of a dry run")
    position = Number()
    epoch = Number(help_text="of the position, by now")
    held = serializers.BooleanField(help_text="its holder settled within 2 minutes")
    whole = serializers.BooleanField(
        help_text="false: there are more open poisons than were looked at"
    )
    steps = MoveStep(many=True, help_text="one for each publisher")


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
    delay = serializers.FloatField(help_text="the longest; 0: there is none")
    peeks = serializers.BooleanField(help_text="looking at dead letters is harmless")
    extends = serializers.BooleanField()
    counting = CountingName(help_text="who knows a dead letter's dequeue count")
    dead_letters_itself = serializers.BooleanField()
    delivered = serializers.BooleanField(help_text="it counts deliveries")


class Broker(Schema):
    id = Number()
    name = Text()
    kind = KindName()
    address = Text(help_text="env:NAME, or that it is kept sealed; never the address")
    options = serializers.DictField(help_text="what only its kind knows")
    sample = serializers.BooleanField(help_text="of the demonstration")
    topics = Number(help_text="that it carries, as far as they are known here")
    capabilities = Capabilities(
        allow_null=True, help_text="null where its client is not installed"
    )


class AddedBroker(Broker): ...


class NewBroker(Schema):
    name = Text(max_length=100)
    kind = KindName()
    url = Text(
        write_only=True, help_text="the address with its secret, or env:NAME for one"
    )
    options = serializers.DictField(required=False)


class BrokerChange(Schema):
    name = Text(required=False, max_length=100)
    url = Text(required=False, write_only=True, help_text="as of a new broker")
    options = serializers.DictField(required=False, help_text="all of them")


class Reached(Schema):
    ok = serializers.BooleanField()
    detail = Text(help_text="what the broker said, or what is wrong; no secret")
    milliseconds = Number()


class FoundTopic(Schema):
    native_name = Text(help_text="the broker's own")
    depth = Number(allow_null=True, help_text="null where the broker does not count")
    dead_letter_queue = Text(allow_blank=True, help_text="empty: it has none")
    dead_letters = Number(allow_null=True)
    name = Text(allow_null=True, help_text="what it is known by here; null: not yet")


class FoundTopics(Schema):
    results = FoundTopic(many=True)


class Lane(Schema):
    """What is done with a topic's dead letters, and how that goes."""

    mode = ModeName()
    tee_queue = Text(allow_blank=True)
    paused = serializers.BooleanField()
    state = LaneStateName()
    heard = serializers.BooleanField(help_text="within 20 s; else the state is old")
    detail = Text(allow_blank=True)
    seen_at = Moment(allow_null=True)
    depth = Number(allow_null=True, help_text="of the dead-letter queue")
    oldest_at = Moment(allow_null=True)
    captured = Number(help_text="ever")
    rate = serializers.FloatField(help_text="dead letters a minute, of late")
    held = Number(help_text="dead letters that cannot be taken, and stay")
    error = Text(allow_blank=True, help_text="the last one, also when it is over")
    error_at = Moment(allow_null=True)


class _Policies(Schema):
    dead_letter_queue = Text(required=False, allow_blank=True)
    max_dequeue_count = Number(required=False, min_value=1)
    visibility_timeout = serializers.FloatField(
        required=False, help_text="seconds; hh:mm:ss is taken, too"
    )
    retention_days = Number(required=False, allow_null=True, min_value=1)
    owner = Text(required=False, allow_blank=True, max_length=200)
    runbook = Text(
        required=False, allow_blank=True, help_text="a link: https:// or http://"
    )
    options = serializers.DictField(required=False, help_text="all of them")
    mode = ModeName(required=False)
    tee_queue = Text(required=False, help_text="where copies go in mode tee")
    paused = serializers.BooleanField(required=False)
    reason = Text(required=False, help_text="it stands in the audit trail")


class NewTopic(_Policies):
    name = Text(help_text="as it is to be known here")
    broker = Text(help_text="by its name")
    native_name = Text(required=False, help_text="the broker's own, if another")


class TopicChange(_Policies):
    name = Text(help_text="which topic")


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
    lane = Lane(allow_null=True, help_text="null: nobody looks at its dead letters")


class RegisteredTopic(Topic): ...


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


class Brokers(_List):
    results = Broker(many=True)


class Topics(_List):
    results = Topic(many=True)


class Positions(_List):
    results = Position(many=True)
