"""Read the published failure rates, and the runs that published them, newest first."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum

from django.db.models import Q

from apps.api.paging import Page, RowKey, Window
from apps.brokers.models import Topic
from apps.core.errors import Invalid
from apps.reports.models import Rate, Run
from apps.reports.querysets import RateQuerySet
from apps.reports.services.requests import newest_over
from apps.team.rights import Principal

REPORTED_DAYS = 28


class Granularity(StrEnum):
    DAY = "day"
    HOUR = "hour"


def period(
    *, first: date | None, last: date | None, now: datetime
) -> tuple[date, date]:
    """Complete the first and the last day, both included; raise Invalid for none."""
    last = last or newest_over(now)
    first = first or _four_weeks_until(last)
    if first > last:
        raise Invalid("from", f"send a day that is not after {last}")
    return first, last


def rates(
    window: Window,
    principal: Principal,
    *,
    days: tuple[date, date],
    by: Granularity,
    topic: str | None,
    consumer_group: str | None,
) -> Page[Rate]:
    """List rates by day, hour and topic.

    `consumer_group` is None for all groups of a topic together; the empty text selects
    the group without a name.
    """
    rows = Rate.objects.between(*days).filter(consumer_group=consumer_group)
    rows = rows.whole_days() if by is Granularity.DAY else rows.by_hour()
    if topic:
        rows = rows.on(topic)
    if not principal.sees_every_topic:
        rows = rows.filter(topic__in=Topic.objects.matching(principal.topics))
    if window.after and window.after.at:
        rows = _after(rows, window.after.at, window.after.pk)
    ordered = rows.select_related("day", "topic__broker").order_by(
        "-day", "-hour", "topic_id"
    )
    return window.page(ordered, _row_key)


def runs(window: Window) -> Page[Run]:
    rows = Run.objects.recent_first()
    if window.after:
        rows = rows.filter(pk__lt=window.after.pk)
    return window.page(rows, lambda row: RowKey(pk=row.pk))


def _four_weeks_until(last: date) -> date:
    try:
        return last - timedelta(days=REPORTED_DAYS - 1)
    except OverflowError:
        return date.min


def _row_key(row: Rate) -> RowKey:
    # Not the pk of the row: publishing a day again replaces its rows.
    at = datetime.combine(row.day_id, time(row.hour or 0), UTC)
    return RowKey(at=at, pk=row.topic_id)


def _after(rows: RateQuerySet, at: datetime, topic: int) -> RateQuerySet:
    same_hour = Q(hour=at.hour) | Q(hour=None)
    later_topic = same_hour & Q(topic__gt=topic)
    return rows.filter(day__lte=at.date()).filter(
        Q(day__lt=at.date()) | Q(hour__lt=at.hour) | later_topic
    )
