"""Failure rates, and the runs of the nightly report that measured them."""

from __future__ import annotations

from rest_framework import serializers

from apps.api.serializers.base import (
    AnyField,
    Day,
    List,
    Moment,
    Number,
    Schema,
    Text,
    choice,
)
from apps.reports.states import Source, State

SourceName = choice("Source", Source)
RunState = choice("RunState", State)


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
    delivered = Number(allow_null=True, help_text="null where it is not counted")
    failed = Number()
    uncounted = Number(help_text="of failed: left out of the rate, as it has no count")
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

    # Not a class attribute: serializers of rest_framework use this name themselves.
    def get_fields(self) -> dict[str, AnyField]:
        return {**super().get_fields(), "source": SourceName()}


class ReportRun(Schema):
    id = Number()
    state = RunState()
    to = Day()
    asked_by = Text()
    asked_at = Moment()
    started_at = Moment(allow_null=True)
    as_of = Moment(allow_null=True, help_text="the moment of the data that it read")
    finished_at = Moment(allow_null=True)
    seconds = serializers.FloatField(allow_null=True)
    rows_in = Number()
    late_rows = Number()
    trouble = Text(allow_null=True, help_text="null for a key that is for some topics")

    # Not a class attribute: `from` is a keyword of Python.
    def get_fields(self) -> dict[str, AnyField]:
        return {**super().get_fields(), "from": Day()}


class FailureRates(List):
    results = FailureRate(many=True)


class ReportRuns(List):
    results = ReportRun(many=True)
