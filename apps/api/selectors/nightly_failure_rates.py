"""Read what the nightly runs published, and the runs, newest first."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum

from apps.api.keyset_pagination import CursorTime, Page, PageWindow
from apps.brokers.models import Topic
from apps.core.errors import Invalid
from apps.reports.models import EndpointDay, Rate, Run
from apps.reports.services.report_requests import newest_over
from apps.team.rights import Principal

REPORTED_DAYS = 28


def _moment(day: date, hour: int = 0) -> datetime:
    return datetime.combine(day, time(hour), UTC)


DAYS = CursorTime(time_of=_moment, fields_of=lambda at: [at.date()])
HOURS = CursorTime(time_of=_moment, fields_of=lambda at: [at.date(), at.hour])


class Granularity(StrEnum):
    DAY = "day"
    HOUR = "hour"


def with_default_days(
    *, first: date | None, last: date | None, now: datetime
) -> tuple[date, date]:
    """Fill in the first or last day of a report's period if it is missing; return both.

    By default it is the newest four weeks. Raises Invalid where the first day is after
    the last.
    """
    last = last or newest_over(now)
    first = first or _four_weeks_until(last)
    if first > last:
        raise Invalid("from", f"send a day that is not after {last}")
    return first, last


def rates(
    window: PageWindow,
    principal: Principal,
    *,
    days: tuple[date, date],
    by: Granularity,
    topic: str | None,
    consumer_group: str | None,
) -> Page[Rate]:
    """List failure rates by day, hour and topic.

    `consumer_group` is None for all groups of a topic together; the empty text selects
    the group without a name.
    """
    rows = Rate.objects.between(*days).filter(consumer_group=consumer_group)
    by_hour = by is Granularity.HOUR
    rows = rows.by_hour() if by_hour else rows.whole_days()
    if topic:
        rows = rows.on(topic)
    if not principal.sees_every_topic:
        rows = rows.filter(topic__in=Topic.objects.matching(principal.topics))
    # Not by the pk of the row: publishing a day again replaces its rows.
    order = ("-day_id", "-hour", "topic_id") if by_hour else ("-day_id", "topic_id")
    rows = rows.select_related("day", "topic__broker", "topic__outbox__broker")
    rows = rows.order_by(*order)
    return window.page(rows, HOURS if by_hour else DAYS)


def endpoint_days(
    window: PageWindow,
    principal: Principal,
    *,
    days: tuple[date, date],
    endpoint: str | None,
) -> Page[EndpointDay]:
    """List the daily figures of calls to endpoints whose topics a principal sees."""
    rows = EndpointDay.objects.between(*days)
    if endpoint:
        rows = rows.filter(endpoint=endpoint)
    if not principal.sees_every_topic:
        rows = rows.filter(topic__in=Topic.objects.matching(principal.topics))
    # Not by the pk of the row: publishing a day again replaces its rows.
    rows = rows.select_related("day", "topic").order_by("-day_id", "topic_id")
    return window.page(rows, DAYS)


def runs(window: PageWindow) -> Page[Run]:
    return window.page(Run.objects.recent_first())


def _four_weeks_until(last: date) -> date:
    try:
        return last - timedelta(days=REPORTED_DAYS - 1)
    except OverflowError:
        return date.min
