"""The days of a report and what it is on, parsed once from the address."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Self

from django.http import QueryDict

from apps.core.errors import Invalid
from apps.core.text_cleaning import storable
from apps.reports.services.report_requests import newest_over

DEFAULT_DAYS = 28
MOST_DAYS = 366
CHOICES = (7, DEFAULT_DAYS, 90)
OLDEST = date(1970, 1, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Period:
    """A range of UTC days that are over; the first and the last day are included."""

    first: date
    last: date

    @classmethod
    def parse(cls, params: QueryDict, *, now: datetime) -> Self:
        """Parse a report's period: `from`, `to`, or `days` up to `to`; raises Invalid.

        By default it ends with the newest day that is over, and has 28 days.
        """
        newest = newest_over(now)
        last = min(day("to", params.get("to")) or newest, newest)
        first = day("from", params.get("from")) or _so_far_back(
            params.get("days"), last
        )
        if first > last:
            raise Invalid("from", f"send a day that is not after {last}")
        if (last - first).days >= MOST_DAYS:
            raise Invalid("from", f"a page shows at most {MOST_DAYS} days")
        return cls(first=first, last=last)

    @property
    def length(self) -> int:
        return (self.last - self.first).days + 1

    @property
    def days(self) -> list[date]:
        return [self.first + timedelta(days=number) for number in range(self.length)]

    @property
    def before(self) -> date:
        """Return the last day of the report's previous period."""
        return self.first - timedelta(days=1)

    @property
    def after(self) -> date:
        """Return the last day of the report's next period, of as many days."""
        return self.last + timedelta(days=self.length)


@dataclass(frozen=True, kw_only=True, slots=True)
class PeriodParams:
    """The period of a report page; `wrong` is the error of a parameter it ignored."""

    period: Period
    newest: date
    wrong: Invalid | None

    @property
    def status(self) -> int:
        """Return the status code of a report's page: 422 for a wrong address."""
        return 422 if self.wrong else 200

    @property
    def is_latest(self) -> bool:
        """Tell whether the report's period ends with the newest day that is over."""
        return self.period.last == self.newest

    @property
    def days_query(self) -> dict[str, str]:
        """Return a report's days as the API and the CSV downloads take them."""
        return {"from": str(self.period.first), "to": str(self.period.last)}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportParams(PeriodParams):
    """The parameters of the page of failure rates."""

    topic: str

    @classmethod
    def of(cls, params: QueryDict, *, now: datetime) -> Self:
        """Parse the period and the topic in the address of the failure rate report.

        A wrong period becomes the usual one, a wrong topic "", and `wrong` is the
        error.
        """
        topic, wrong = _name("topic", params)
        period, wrong_period = _period(params, now=now)
        return cls(
            period=period,
            topic=topic,
            newest=newest_over(now),
            wrong=wrong or wrong_period,
        )

    @property
    def as_query(self) -> dict[str, str]:
        """Return a report's parameters as the API and the CSV download take them."""
        return (
            {"topic": self.topic, **self.days_query} if self.topic else self.days_query
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointReportParams(PeriodParams):
    """The parameters of the page of endpoints."""

    endpoint: str

    @classmethod
    def of(cls, params: QueryDict, *, now: datetime) -> Self:
        """Parse the period and the endpoint in the address of the endpoint report.

        A wrong period becomes the usual one, a wrong endpoint "", and `wrong` is the
        error.
        """
        endpoint, wrong = _name("endpoint", params)
        period, wrong_period = _period(params, now=now)
        return cls(
            period=period,
            endpoint=endpoint,
            newest=newest_over(now),
            wrong=wrong or wrong_period,
        )

    @property
    def as_query(self) -> dict[str, str]:
        """Return a report's parameters as the API and the CSV download take them."""
        chosen = {"endpoint": self.endpoint} if self.endpoint else {}
        return {**chosen, **self.days_query}


def _name(parameter: str, params: QueryDict) -> tuple[str, Invalid | None]:
    """Return the topic or endpoint in a report's address; "" and the error if wrong."""
    name = params.get(parameter, "")
    if name == storable(name):
        return name, None
    return "", Invalid(parameter, "it holds a character that no stored text has")


def _period(params: QueryDict, *, now: datetime) -> tuple[Period, Invalid | None]:
    """Return the period in a report's address; the usual and the error if wrong."""
    try:
        return Period.parse(params, now=now), None
    except Invalid as reason:
        return Period.parse(QueryDict(), now=now), reason


def day(name: str, value: str | None) -> date | None:
    """Parse a report's day; None without one; raises Invalid for a wrong one.

    A day before 1970 is wrong, too.
    """
    if not value:
        return None
    try:
        parsed = date.fromisoformat(value)
    except ValueError:
        raise Invalid(name, "send a day such as 2026-11-20") from None
    if parsed < OLDEST:
        raise Invalid(name, f"send a day that is not before {OLDEST}")
    return parsed


def _so_far_back(value: str | None, last: date) -> date:
    """Parse a report's number of days; return the first of so many, up to `last`.

    Without a number there are 28 days. Raises Invalid for a wrong one.
    """
    text = (value or str(DEFAULT_DAYS))[:4]
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= number <= MOST_DAYS:
        raise Invalid("days", f"send a number from 1 to {MOST_DAYS}")
    return last - timedelta(days=number - 1)
