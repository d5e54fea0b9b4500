"""Parse the filters of the published failure rates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Self

from django.http import QueryDict

from apps.api.parameters.base import text
from apps.core.errors import Invalid
from apps.reports.services.requests import newest_over

REPORTED_DAYS = 28


class Granularity(StrEnum):
    DAY = "day"
    HOUR = "hour"


@dataclass(frozen=True, kw_only=True, slots=True)
class RateParams:
    """Filters of the failure rates; both days are included, and are UTC days.

    `consumer_group` is None for all groups of a topic together; the empty text selects
    the group without a name.
    """

    topic: str | None
    first: date
    last: date
    by: Granularity
    consumer_group: str | None

    @classmethod
    def parse(cls, params: QueryDict, *, now: datetime) -> Self:
        """Parse the filters; by default the newest days. Raises Invalid."""
        last = _day("to", params.get("to")) or newest_over(now)
        first = _day("from", params.get("from")) or _first_day(last)
        if first > last:
            raise Invalid("from", f"send a day that is not after {last}")
        group = params.get("consumer_group")
        return cls(
            topic=text("topic", params.get("topic")),
            first=first,
            last=last,
            by=_granularity(params.get("by")),
            consumer_group=group and text("consumer_group", group),
        )


def _granularity(value: str | None) -> Granularity:
    """Parse `by`: day or hour. Raises Invalid."""
    if value not in {None, *Granularity}:
        raise Invalid("by", f"use one of {', '.join(Granularity)}")
    return Granularity(value or Granularity.DAY)


def _day(name: str, value: str | None) -> date | None:
    """Parse a day; None without one. Raises Invalid."""
    if not value:
        return None
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise Invalid(name, "send a day such as 2026-11-20") from None


def _first_day(last: date) -> date:
    """Return the first of the days that a report has by default."""
    try:
        return last - timedelta(days=REPORTED_DAYS - 1)
    except OverflowError:
        return date.min
