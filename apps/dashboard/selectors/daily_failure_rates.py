"""Daily published rates of a topic, or of one consumer group, with their chart."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Self

from django.urls import reverse
from django.utils.http import urlencode

from apps.brokers.models import Topic
from apps.dashboard.presentation import charts
from apps.dashboard.presentation.charts import Chart, Heat, Point
from apps.dashboard.presentation.report_numbers import percent
from apps.dashboard.report_params import Period
from apps.poison.query_language import Query, Term
from apps.reports.models import Rate
from apps.reports.report_run_states import DeliveredSource

HOURS = 24
# Bounds of the upper end of the axis: for rates, and for numbers of failures.
LEAST_RATE, MOST_RATE = 0.001, 1.0
LEAST_NUMBER = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Total:
    """The sum of several rates; `delivered` is None if deliveries are not counted."""

    delivered: int | None
    failed: int
    uncounted: int

    @classmethod
    def of(cls, rates: Iterable[Rate]) -> Self:
        """Sum deliveries and failures over several failure rates.

        `delivered` is None where no consumer counted its deliveries.
        """
        all_rates = list(rates)
        counted = [r.delivered for r in all_rates if r.delivered is not None]
        return cls(
            delivered=sum(counted) if counted else None,
            failed=sum(rate.failed for rate in all_rates),
            uncounted=sum(rate.uncounted for rate in all_rates),
        )

    @property
    def rate(self) -> float | None:
        """Return the failure rate: failures / deliveries, without uncounted failures.

        None without counted deliveries, or where more failed than were delivered.
        """
        counted = self.failed - self.uncounted
        if not self.delivered or counted > self.delivered:
            return None
        return counted / self.delivered


@dataclass(frozen=True, kw_only=True, slots=True)
class DayRow:
    """A day of a series; without a rate nothing happened, at a gap no report exists."""

    day: date
    rate: Rate | None
    is_gap: bool
    href: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """The days of a topic; `group` is None for all consumer groups together."""

    topic: Topic
    group: str | None
    rows: Sequence[DayRow]
    total: Total
    chart: Chart

    @property
    def shows_rates(self) -> bool:
        """Tell whether the chart shows failure rates or numbers of failures."""
        return self.total.rate is not None

    @property
    def is_sample(self) -> bool:
        return self.topic.is_sample

    @property
    def sources(self) -> list[str]:
        """List who counted the deliveries behind a chart's failure rates."""
        sources = {row.rate.source for row in self.rows if row.rate}
        return [source.value for source in DeliveredSource if source in sources]

    @property
    def newest_first(self) -> Sequence[DayRow]:
        return self.rows[::-1]

    @property
    def gaps(self) -> int:
        """Count the days of a failure rate chart that have no report."""
        return sum(row.is_gap for row in self.rows)

    @property
    def summary(self) -> str:
        """Describe the chart of failure rates in a sentence."""
        what = "Failure rate" if self.shows_rates else "Failures"
        first, last = self.rows[0].day, self.rows[-1].day
        gaps = f"; {self.gaps} of {len(self.rows)} days have no report"
        return (
            f"{what} by the day from {first} to {last}: {self._course()}"
            f"{gaps if self.gaps else ''}."
        )

    def _course(self) -> str:
        """Describe a chart's total and highest daily failures in words."""
        rates = [row.rate for row in self.rows if row.rate]
        if not rates:
            return "nothing happened"
        worst = max(rates, key=_failure_rate if self.shows_rates else _failed)
        if self.shows_rates:
            total, highest = percent(self.total.rate), percent(worst.failure_rate)
        else:
            total, highest = f"{self.total.failed:,}", f"{worst.failed:,}"
        return f"{total} in all, at most {highest} on {worst.day_id}"


def series(
    topic: Topic,
    rates: Sequence[Rate],
    *,
    period: Period,
    published: Collection[date],
    group: str | None = None,
) -> Series:
    """Build the daily failure rates of a topic or group, with their chart."""
    by_day, total = {rate.day_id: rate for rate in rates}, Total.of(rates)
    rows = [
        DayRow(
            day=day,
            rate=by_day.get(day),
            is_gap=day not in published,
            href=_messages(topic, group, day),
        )
        for day in period.days
    ]
    return Series(
        topic=topic,
        group=group,
        rows=rows,
        total=total,
        chart=_chart(rows, shows_rates=total.rate is not None),
    )


def _messages(topic: Topic, group: str | None, day: date) -> str:
    """Return the link to the messages that last failed on this day."""
    terms = [Term("topic", topic.name)]
    if group:
        terms.append(Term("consumer", group))
    query = Query((*terms, Term("day", str(day))))
    return f"{reverse('messages')}?{urlencode({'q': str(query)})}"


def _chart(rows: Iterable[DayRow], *, shows_rates: bool) -> Chart:
    """Draw failure rates, or the numbers of failures where there are no rates."""
    if shows_rates:
        points = [_rate_point(row) for row in rows]
        return charts.chart(points, least=LEAST_RATE, most=MOST_RATE)
    return charts.chart([_number_point(row) for row in rows], least=LEAST_NUMBER)


def _rate_point(row: DayRow) -> Point:
    """Return the chart's point of a day: failure rate, confidence interval, label."""
    rate = row.rate
    if rate is None:
        return _blank_point(row)
    text = f"{rate.failed:,} failed"
    if rate.delivered is not None:
        text = f"{percent(rate.failure_rate)}, {text} of {rate.delivered:,}"
    return Point(
        label=f"{row.day:%a %Y-%m-%d}: {text}",
        href=row.href,
        value=rate.failure_rate,
        low=rate.rate_low,
        high=rate.rate_high,
    )


def _number_point(row: DayRow) -> Point:
    """Return a day's point in a topic's chart: its failures, with a label.

    Or in the chart of one consumer group.
    """
    if row.rate is None:
        return _blank_point(row)
    label = f"{row.day:%a %Y-%m-%d}: {row.rate.failed:,} failed"
    return Point(label=label, href=row.href, value=row.rate.failed)


def _blank_point(row: DayRow) -> Point:
    """Return the chart's point of a day without a failure rate; its label says why."""
    reason = "no report of this day" if row.is_gap else "nothing was delivered"
    label = f"{row.day:%a %Y-%m-%d}: {reason}"
    return Point(label=label, href=row.href, is_gap=row.is_gap)


@dataclass(frozen=True, kw_only=True, slots=True)
class HourRow:
    """The hours of a day; None for an hour in which nothing happened."""

    day: DayRow
    hours: Sequence[Rate | None]


def by_hour(whole: Series, rates: Iterable[Rate]) -> list[HourRow]:
    """Return a topic's failure rates of each day by hour, None without one."""
    by_day_and_hour = {(rate.day_id, rate.hour): rate for rate in rates}
    return [
        HourRow(
            day=row,
            hours=[by_day_and_hour.get((row.day, hour)) for hour in range(HOURS)],
        )
        for row in whole.rows
    ]


def heat(whole: Series, rows: Iterable[HourRow]) -> Heat:
    """Draw a heat map of failure rates, or numbers of failures: a column per day.

    A day without a report is a gap.
    """
    columns = [
        None
        if row.day.is_gap
        else [
            _hour_point(row.day.day, hour, rate, shows_rates=whole.shows_rates)
            for hour, rate in enumerate(row.hours)
        ]
        for row in rows
    ]
    return charts.heat(columns)


def _hour_point(day: date, hour: int, rate: Rate | None, *, shows_rates: bool) -> Point:
    """Return the heat map's point of an hour: failure rate, or number of failures."""
    when = f"{day:%a %Y-%m-%d} {hour:02}:00 UTC"
    if rate is None:
        return Point(label=when)
    if not shows_rates:
        return Point(label=f"{when}: {rate.failed:,} failed", value=rate.failed)
    text = f"{percent(rate.failure_rate)}, {rate.failed:,} failed"
    return Point(label=f"{when}: {text}", value=rate.failure_rate)


def _failure_rate(rate: Rate) -> float:
    return rate.failure_rate or 0.0


def _failed(rate: Rate) -> int:
    return rate.failed
