"""Report runs, and the rates that they publish day by day.

A day is published whole or not at all: its row and all its rates are replaced in one
transaction. Until then a run stages its rows in unlogged tables, which have no models.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.db.models import F, Q

from apps.brokers.models import Topic
from apps.core.postgres_transaction_fields import SnapshotField
from apps.poison.models import Problem
from apps.reports.querysets import (
    EndpointDayQuerySet,
    ProblemDayQuerySet,
    RateQuerySet,
    RunQuerySet,
)
from apps.reports.report_run_states import FINISHED, DeliveredSource, RunState


class Run(models.Model):
    """One run over the reports of some days, with the data as it was at `as_of`."""

    first_day = models.DateField()
    last_day = models.DateField()
    state = models.CharField(max_length=10, default=RunState.QUEUED.value)
    asked_by = models.TextField()
    asked_at = models.DateTimeField()
    epoch = models.PositiveIntegerField(default=0, help_text="one more for each start")
    started_at = models.DateTimeField(null=True)
    snapshot = SnapshotField(null=True)
    as_of = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    rows_in = models.BigIntegerField(default=0)
    late_rows = models.BigIntegerField(default=0)
    trouble = models.TextField(default="", help_text="why it failed, in a line")
    log = models.TextField(default="", help_text="the end of the job's log, if it did")

    objects = RunQuerySet.as_manager()

    class Meta:
        db_table = "reports_run"
        # An exclusion constraint beside these (0001): unfinished runs never overlap.
        constraints = [
            models.CheckConstraint(
                name="reports_run_state_is_known",
                condition=Q(state__in=[state.value for state in RunState]),
            ),
            models.CheckConstraint(
                name="reports_run_window_is_in_order",
                condition=Q(first_day__lte=F("last_day")),
            ),
            models.CheckConstraint(
                name="reports_run_finished_has_finished_at",
                condition=Q(state__in=FINISHED, finished_at__isnull=False)
                | (~Q(state__in=FINISHED) & Q(finished_at=None)),
            ),
            models.CheckConstraint(
                name="reports_run_done_has_a_snapshot",
                condition=~Q(state="done")
                | Q(snapshot__isnull=False, as_of__isnull=False),
            ),
            models.CheckConstraint(
                name="reports_run_failed_says_why",
                condition=Q(state="failed") & ~Q(trouble="")
                | (~Q(state="failed") & Q(trouble="")),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.pk} {self.first_day} to {self.last_day} {self.state}"

    @property
    def days(self) -> int:
        """Count the days of the report run."""
        return (self.last_day - self.first_day).days + 1

    @property
    def duration(self) -> timedelta | None:
        """Return how long the report run's last start took; None while it runs."""
        if self.started_at is None or self.finished_at is None:
            return None
        return self.finished_at - self.started_at


class Day(models.Model):
    """A published UTC day. A day without a row here is a gap, not a zero.

    A release that knew no endpoints did not count them: then a day without a row of an
    endpoint is a gap for it, too.
    """

    day = models.DateField(primary_key=True)
    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="published")
    rows_in = models.BigIntegerField()
    late_rows = models.BigIntegerField()
    counts_endpoints = models.BooleanField(db_default=False)

    class Meta:
        db_table = "reports_day"
        constraints = [
            models.CheckConstraint(
                name="reports_day_is_not_negative",
                condition=Q(rows_in__gte=0, late_rows__gte=0),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.day} by run {self.run_id}"


class _Measured(models.Model):
    """The measures of a topic and of a problem alike; `failed` is terminal.

    `delivered` is null if no source counts it, and then the rate is null too. The
    interval is Wilson's at 95 %.
    """

    delivered = models.BigIntegerField(null=True)
    failed = models.BigIntegerField()
    poisoned = models.BigIntegerField(help_text="messages that failed so at first")
    retried = models.BigIntegerField()
    redriven = models.BigIntegerField()
    confirmed = models.BigIntegerField()
    recurred = models.BigIntegerField()
    dropped = models.BigIntegerField()
    failure_rate = models.FloatField(null=True)
    rate_low = models.FloatField(null=True)
    rate_high = models.FloatField(null=True)

    class Meta:
        abstract = True


NOT_NEGATIVE = Q(
    delivered__gte=0,
    failed__gte=0,
    poisoned__gte=0,
    retried__gte=0,
    redriven__gte=0,
    confirmed__gte=0,
    recurred__gte=0,
    dropped__gte=0,
)
A_RATE_IS_A_PART = Q(failure_rate=None, rate_low=None, rate_high=None) | Q(
    delivered__gt=0,
    rate_low__gte=0,
    rate_low__lte=F("failure_rate"),
    rate_high__gte=F("failure_rate"),
    rate_high__lte=1,
)


class Rate(_Measured):
    """A topic in an hour, or the whole day (`hour` null), by consumer group or in all.

    `uncounted` is the part of `failed` in groups without a count of deliveries; it is
    no part of the rate. The quantiles are upper bounds of handling time.
    """

    day = models.ForeignKey(
        Day, on_delete=models.CASCADE, related_name="rates", db_index=False
    )
    hour = models.PositiveSmallIntegerField(null=True)
    topic = models.ForeignKey(
        Topic, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    consumer_group = models.TextField(null=True)
    source = models.CharField(max_length=10)
    uncounted = models.BigIntegerField()
    skipped = models.BigIntegerField()
    p50_ms = models.BigIntegerField(null=True)
    p95_ms = models.BigIntegerField(null=True)
    p99_ms = models.BigIntegerField(null=True)

    objects = RateQuerySet.as_manager()

    class Meta:
        db_table = "reports_rate"
        constraints = [
            models.UniqueConstraint(
                fields=["topic", "day", "hour", "consumer_group"],
                name="reports_rate_once",
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                name="reports_rate_source_is_known",
                condition=Q(source__in=[source.value for source in DeliveredSource]),
            ),
            models.CheckConstraint(
                name="reports_rate_hour_is_of_a_day",
                condition=Q(hour=None) | Q(hour__lte=23),
            ),
            models.CheckConstraint(
                name="reports_rate_is_not_negative",
                condition=NOT_NEGATIVE
                & Q(skipped__gte=0, uncounted__gte=0, uncounted__lte=F("failed")),
            ),
            models.CheckConstraint(
                name="reports_rate_is_a_part", condition=A_RATE_IS_A_PART
            ),
            models.CheckConstraint(
                name="reports_rate_without_a_source_is_null",
                condition=~Q(source="none") | Q(delivered=None),
            ),
        ]
        indexes = [
            models.Index(fields=["day", "hour"], name="reports_rate_by_day"),
        ]

    def __str__(self) -> str:
        return f"{self.topic_id} {self.day_id} {self.hour}: {self.failure_rate}"


class ProblemDay(_Measured):
    """A problem on a day; `delivered` counts its whole consumer group."""

    day = models.ForeignKey(
        Day, on_delete=models.CASCADE, related_name="problems", db_index=False
    )
    problem = models.ForeignKey(
        Problem, on_delete=models.PROTECT, related_name="+", db_index=False
    )

    objects = ProblemDayQuerySet.as_manager()

    class Meta:
        db_table = "reports_problem_day"
        constraints = [
            models.UniqueConstraint(
                fields=["day", "problem"], name="reports_problem_day_once"
            ),
            models.CheckConstraint(
                name="reports_problem_day_is_not_negative", condition=NOT_NEGATIVE
            ),
            models.CheckConstraint(
                name="reports_problem_day_is_a_part", condition=A_RATE_IS_A_PART
            ),
        ]

    def __str__(self) -> str:
        return f"{self.problem_id} {self.day_id}: {self.failed}"


class EndpointDay(models.Model):
    """How the calls and deliveries of an endpoint ended on a day.

    `topic` is the endpoint's: its row stays when the endpoint is removed. `calls` and
    `succeeded_at_first` are from counts of minutes, all others from deliveries: `after`
    a number of retries, `unknown` as a part of what was not delivered, `waiting` at the
    day's end. Times are from acceptance to success, exact, of `timed` deliveries.
    """

    # Without a constraint: the release before, which may run beside this one, replaces
    # days without knowing these rows.
    day = models.ForeignKey(
        Day,
        on_delete=models.CASCADE,
        related_name="endpoints",
        db_index=False,
        db_constraint=False,
    )
    topic = models.ForeignKey(
        Topic, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    endpoint = models.TextField()
    calls = models.BigIntegerField()
    succeeded_at_first = models.BigIntegerField()
    after_1 = models.BigIntegerField()
    after_2 = models.BigIntegerField()
    after_3 = models.BigIntegerField()
    after_4_to_10 = models.BigIntegerField()
    after_more = models.BigIntegerField()
    given_up = models.BigIntegerField(help_text="given to triage")
    dropped = models.BigIntegerField()
    forwarded = models.BigIntegerField()
    unknown = models.BigIntegerField()
    waiting = models.BigIntegerField()
    timed = models.BigIntegerField(help_text="deliveries that succeeded")
    p50_ms = models.BigIntegerField(null=True)
    p95_ms = models.BigIntegerField(null=True)
    longest_ms = models.BigIntegerField(null=True)
    is_partial = models.BooleanField(
        help_text="deliveries of the day may have been deleted before it was counted"
    )

    objects = EndpointDayQuerySet.as_manager()

    class Meta:
        db_table = "reports_endpoint_day"
        constraints = [
            models.UniqueConstraint(
                fields=["topic", "day"], name="reports_endpoint_day_once"
            ),
            models.CheckConstraint(
                name="reports_endpoint_day_is_not_negative",
                condition=Q(
                    calls__gte=0,
                    succeeded_at_first__gte=0,
                    after_1__gte=0,
                    after_2__gte=0,
                    after_3__gte=0,
                    after_4_to_10__gte=0,
                    after_more__gte=0,
                    given_up__gte=0,
                    dropped__gte=0,
                    forwarded__gte=0,
                    unknown__gte=0,
                    waiting__gte=0,
                ),
            ),
            models.CheckConstraint(
                name="reports_endpoint_day_has_parts",
                condition=Q(
                    succeeded_at_first__lte=F("calls"),
                    unknown__lte=F("given_up") + F("dropped") + F("forwarded"),
                    timed__gte=F("after_1")
                    + F("after_2")
                    + F("after_3")
                    + F("after_4_to_10")
                    + F("after_more"),
                ),
            ),
            models.CheckConstraint(
                name="reports_endpoint_day_has_times",
                condition=Q(timed=0, p50_ms=None, p95_ms=None, longest_ms=None)
                | Q(
                    timed__gt=0,
                    p50_ms__gte=0,
                    p95_ms__gte=F("p50_ms"),
                    longest_ms__gte=F("p95_ms"),
                ),
            ),
        ]
        indexes = [
            models.Index(fields=["day"], name="reports_endpoint_day_by_day"),
        ]

    def __str__(self) -> str:
        return f"{self.endpoint} {self.day_id}: {self.calls} calls"

    @property
    def succeeded_later(self) -> int:
        """Count an endpoint's successful deliveries of a day that took a retry."""
        return (
            self.after_1
            + self.after_2
            + self.after_3
            + self.after_4_to_10
            + self.after_more
        )
