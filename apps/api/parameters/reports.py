"""Which of the published numbers."""

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


class By(StrEnum):
    DAY = "day"
    HOUR = "hour"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Which failure rates; both days are included, and are UTC days.

    `consumer_group` is None for all groups of a topic together; a group without a name
    is the empty text.
    """

    topic: str | None
    first: date
    last: date
    by: By
    consumer_group: str | None

    @classmethod
    def parse(cls, told: QueryDict, *, now: datetime) -> Self:
        last = _day("to", told.get("to")) or newest_over(now)
        first = _day("from", told.get("from")) or _weeks_before(last)
        if first > last:
            raise Invalid("from", f"send a day that is not after {last}")
        group = told.get("consumer_group")
        return cls(
            topic=text("topic", told.get("topic")),
            first=first,
            last=last,
            by=_by(told.get("by")),
            consumer_group=group and text("consumer_group", group),
        )


def _by(value: str | None) -> By:
    if value not in {None, *By}:
        raise Invalid("by", f"use one of {', '.join(By)}")
    return By(value or By.DAY)


def _day(name: str, value: str | None) -> date | None:
    if not value:
        return None
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise Invalid(name, "send a day such as 2026-11-20") from None


def _weeks_before(last: date) -> date:
    try:
        return last - timedelta(days=REPORTED_DAYS - 1)
    except OverflowError:
        return date.min
