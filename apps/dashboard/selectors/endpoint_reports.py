"""The data of the report page of endpoints; no number is live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import NamedTuple

from django.contrib.postgres.aggregates import BoolOr
from django.db.models import F, Max, Q, Sum

from apps.dashboard.report_params import EndpointReportParams, Period
from apps.dashboard.selectors.nightly_reports import Freshness, freshness
from apps.dashboard.selectors.rising_topics_and_problems import of_topics
from apps.reports.models import Day, EndpointDay
from apps.reports.querysets import EndpointDayQuerySet
from apps.team.rights import Principal

MOST_ENDPOINTS = 200
NOT_SUCCEEDED = F("to_triage") + F("all_dropped") + F("all_forwarded")
LATER = (
    F("after_1") + F("after_2") + F("after_3") + F("after_4_to_10") + F("after_more")
)
# The columns of the CSV file, and the fields behind them.
COLUMNS = {
    "day": "day_id",
    "endpoint": "endpoint",
    "topic": "topic__name",
    "calls": "calls",
    "succeeded_at_first": "succeeded_at_first",
    "after_1": "after_1",
    "after_2": "after_2",
    "after_3": "after_3",
    "after_4_to_10": "after_4_to_10",
    "after_more": "after_more",
    "given_up": "given_up",
    "dropped": "dropped",
    "forwarded": "forwarded",
    "unknown": "unknown",
    "waiting": "waiting",
    "timed": "timed",
    "p50_ms": "p50_ms",
    "p95_ms": "p95_ms",
    "longest_ms": "longest_ms",
    "is_partial": "is_partial",
    "run": "day__run_id",
}


class EndpointTotal(NamedTuple):
    """The days of an endpoint added up; `waiting` is that of the last counted day."""

    endpoint: str
    calls: int
    succeeded_at_first: int
    succeeded_later: int
    given_up: int
    dropped: int
    forwarded: int
    unknown: int
    waiting: int | None
    longest_ms: int | None
    is_partial: bool


class EndpointDayRow(NamedTuple):
    """A day of an endpoint; without counts, `why` says so."""

    day: date
    counts: EndpointDay | None
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointsReport:
    """All endpoints of a period, or one by the day; `gaps` counts uncounted days."""

    freshness: Freshness
    totals: Sequence[EndpointTotal]
    number: int
    days: Sequence[EndpointDayRow]
    gaps: int

    @property
    def left_out(self) -> int:
        """Count the endpoints that the report leaves out."""
        return self.number - len(self.totals)

    @property
    def has_partial(self) -> bool:
        return any(total.is_partial for total in self.totals)


def find(
    params: EndpointReportParams, principal: Principal, *, now: datetime
) -> EndpointsReport:
    """Load the endpoint report: the chosen endpoint's calls, or all endpoints'.

    Only endpoints that the principal sees are in the report.
    """
    period = params.period
    published = _published_days(period)
    counted = {day for day, counts_endpoints in published.items() if counts_endpoints}
    rows = _visible(params, principal)
    totals = _totals(rows, last=max(counted, default=None), most=MOST_ENDPOINTS)
    return EndpointsReport(
        freshness=freshness(now=now),
        totals=totals,
        number=rows.values("topic").distinct().count(),
        days=_days(rows, period, published) if params.endpoint else [],
        gaps=period.length - len(counted),
    )


def csv_rows(
    params: EndpointReportParams, principal: Principal
) -> Iterator[tuple[object, ...]]:
    """Yield the rows of the endpoints' CSV file, in a fixed order."""
    rows = _visible(params, principal).order_by("day", "endpoint", "topic__name")
    return rows.values_list(*COLUMNS.values()).iterator()


def _visible(params: EndpointReportParams, principal: Principal) -> EndpointDayQuerySet:
    """Select a period's daily counts of the endpoints that the principal sees."""
    within = EndpointDay.objects.between(params.period.first, params.period.last)
    rows = within.filter(of_topics(principal))
    return rows.filter(endpoint=params.endpoint) if params.endpoint else rows


def _published_days(period: Period) -> dict[date, bool]:
    """Map the days that have a report to whether the report counts endpoints."""
    days = Day.objects.filter(day__gte=period.first, day__lte=period.last)
    return dict(days.values_list("day", "counts_endpoints"))


def _totals(
    rows: EndpointDayQuerySet, *, last: date | None, most: int
) -> list[EndpointTotal]:
    """Add up the days of each endpoint, for the first `most` endpoints.

    First comes the one with most calls given up, dropped or forwarded.
    """
    summed = rows.order_by().values("endpoint")
    totals = summed.annotate(
        all_calls=Sum("calls"),
        at_first=Sum("succeeded_at_first"),
        later=Sum(LATER),
        to_triage=Sum("given_up"),
        all_dropped=Sum("dropped"),
        all_forwarded=Sum("forwarded"),
        all_unknown=Sum("unknown"),
        last_waiting=Sum("waiting", filter=Q(day=last)),
        longest=Max("longest_ms"),
        any_partial=BoolOr("is_partial"),
    ).order_by(NOT_SUCCEEDED.desc(), "-all_calls", "endpoint")
    return [EndpointTotal._make(total.values()) for total in totals[:most]]


def _days(
    rows: EndpointDayQuerySet, period: Period, published: dict[date, bool]
) -> list[EndpointDayRow]:
    """Return an endpoint report's days with their counts, the newest first."""
    by_day = {row.day_id: row for row in rows}
    return [
        EndpointDayRow(day, by_day.get(day), _why(published.get(day)))
        for day in reversed(period.days)
    ]


def _why(counts_endpoints: bool | None) -> str:  # noqa: FBT001 - three states of a day
    """Say why an endpoint report may have no numbers of a day."""
    if counts_endpoints is None:
        return "no report"
    return "nothing happened" if counts_endpoints else "endpoints not counted"
