"""Failure rates, and the runs of the nightly report that measured them."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from apps.api.selectors.nightly_failure_rates import Granularity
from apps.api.serializers.base import (
    NAME_LIMIT,
    AnyField,
    DayField,
    Flag,
    List,
    Moment,
    Number,
    QuerySchema,
    Schema,
    Text,
    choice,
)
from apps.reports.models import Rate, Run
from apps.reports.report_run_states import DeliveredSource, RunState

SourceName = choice("Source", DeliveredSource)
RunStateName = choice("RunState", RunState)
GranularityName = choice("Granularity", Granularity)


class RateQuery(QuerySchema[dict[str, Any]]):
    topic = Text(
        default=None,
        allow_blank=True,
        max_length=NAME_LIMIT,
        help_text="the name of one; all that the key sees if left out",
    )
    to = DayField(
        default=None,
        source="last",
        help_text="the last UTC day, included; the newest that is over if left out",
    )
    by = GranularityName(default=Granularity.DAY, help_text="day if left out")
    consumer_group = Text(
        default=None,
        allow_blank=True,
        max_length=NAME_LIMIT,
        help_text="the name of one, which may be empty; all of a topic together if left"
        " out",
    )

    # Not a class attribute: `from` is a keyword of Python.
    def get_fields(self) -> dict[str, AnyField]:
        first = DayField(
            default=None,
            source="first",
            help_text="the first UTC day, 27 days before the last if left out",
        )
        return {**super().get_fields(), "from": first}


class EndpointDayQuery(QuerySchema[dict[str, Any]]):
    endpoint = Text(
        default=None,
        allow_blank=True,
        max_length=NAME_LIMIT,
        help_text="the name of one; all that the key sees if left out",
    )
    to = DayField(
        default=None,
        source="last",
        help_text="the last UTC day, included; the newest that is over if left out",
    )

    # Not a class attribute: `from` is a keyword of Python.
    def get_fields(self) -> dict[str, AnyField]:
        first = DayField(
            default=None,
            source="first",
            help_text="the first UTC day, 27 days before the last if left out",
        )
        return {**super().get_fields(), "from": first}


class Interval(Schema):
    low = serializers.FloatField(source="rate_low")
    high = serializers.FloatField(source="rate_high")

    def to_representation(self, row: Rate) -> Any:
        return None if row.failure_rate is None else super().to_representation(row)


class Seconds(serializers.FloatField):
    def to_representation(self, value: Any) -> Any:
        return value.total_seconds()


class FailureRate(Schema):
    """A topic in an hour or on a whole day, in one consumer group or in all of them."""

    day = DayField(source="day_id")
    hour = Number(allow_null=True, help_text="UTC; null of a whole day")
    topic = Text(source="topic.name")
    sample = Flag(source="topic.is_sample", help_text="of the demonstration")
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
    interval = Interval(source="*", allow_null=True, help_text="Wilson's, at 95 %")
    p50_ms = Number(allow_null=True, help_text="an upper bound, as the others are")
    p95_ms = Number(allow_null=True)
    p99_ms = Number(allow_null=True)
    run = Number(source="day.run_id", help_text="that published the day")

    # Not a class attribute: serializers of rest_framework use this name themselves.
    def get_fields(self) -> dict[str, AnyField]:
        return {**super().get_fields(), "source": SourceName()}


class EndpointDay(Schema):
    """How the calls and deliveries of an endpoint ended on a day."""

    day = DayField(source="day_id")
    endpoint = Text()
    topic = Text(source="topic.name")
    calls = Number(help_text="that were answered or failed, retries included")
    succeeded_at_first = Number(help_text="at the first call of a request")
    after_1 = Number(help_text="deliveries that succeeded after one retry")
    after_2 = Number()
    after_3 = Number()
    after_4_to_10 = Number()
    after_more = Number()
    given_up = Number(help_text="deliveries given to triage")
    dropped = Number()
    forwarded = Number()
    unknown = Number(help_text="of given up, dropped and forwarded: the outcome is")
    waiting = Number(help_text="deliveries that had not ended at the end of the day")
    timed = Number(help_text="deliveries that succeeded, of which the times are")
    p50_ms = Number(allow_null=True, help_text="from acceptance to success; exact")
    p95_ms = Number(allow_null=True)
    longest_ms = Number(allow_null=True)
    is_partial = Flag(
        help_text="deliveries of the day may have been deleted before it was counted",
    )
    run = Number(source="day.run_id", help_text="that published the day")


class ReportRun(Schema):
    id = Number()
    state = RunStateName()
    to = DayField(source="last_day")
    asked_by = Text()
    asked_at = Moment()
    started_at = Moment(allow_null=True)
    as_of = Moment(allow_null=True, help_text="the moment of the data that it read")
    finished_at = Moment(allow_null=True)
    seconds = Seconds(source="duration", allow_null=True)
    rows_in = Number()
    late_rows = Number()
    trouble = Text(allow_null=True, help_text="null for a key that is for some topics")

    # Not a class attribute: `from` is a keyword of Python.
    def get_fields(self) -> dict[str, AnyField]:
        return {**super().get_fields(), "from": DayField(source="first_day")}

    def to_representation(self, row: Run) -> dict[str, Any]:
        """Return a report run as a dict for JSON.

        Its `trouble` may name topics, so it is None for a principal who does not see
        all.
        """
        members: dict[str, Any] = super().to_representation(row)
        is_shown = self.context["sees_every_topic"]
        return members if is_shown else {**members, "trouble": None}


class FailureRates(List):
    results = FailureRate(many=True)


class EndpointDays(List):
    results = EndpointDay(many=True)


class ReportRuns(List):
    results = ReportRun(many=True)
