"""Read the published failure rates, and the runs that published them, newest first."""

from __future__ import annotations

from datetime import UTC, datetime, time

from django.db.models import Q

from apps.api.paging import Page, RowKey, Window
from apps.api.parameters.reports import Granularity, RateParams
from apps.brokers.models import Topic
from apps.reports.models import Rate, Run
from apps.reports.querysets import RateQuerySet
from apps.team.rights import Principal


def rates(params: RateParams, window: Window, principal: Principal) -> Page[Rate]:
    """List rates by day, hour and topic: of one consumer group, or of all together."""
    rows = Rate.objects.between(params.first, params.last)
    rows = rows.filter(consumer_group=params.consumer_group)
    rows = rows.whole_days() if params.by is Granularity.DAY else rows.by_hour()
    if params.topic:
        rows = rows.on(params.topic)
    if not principal.sees_every_topic:
        rows = rows.filter(topic__in=Topic.objects.matching(principal.topics))
    if window.after and window.after.at:
        rows = _after(rows, window.after.at, window.after.pk)
    ordered = rows.select_related("day", "topic__broker").order_by(
        "-day", "-hour", "topic_id"
    )
    return window.page(ordered, _key_of)


def runs(window: Window) -> Page[Run]:
    """List a page of runs, newest first."""
    rows = Run.objects.recent_first()
    if window.after:
        rows = rows.filter(pk__lt=window.after.pk)
    return window.page(rows, lambda row: RowKey(pk=row.pk))


def _key_of(row: Rate) -> RowKey:
    """Return where a page continues after this row: day, hour and topic."""
    # Not the pk of the row: publishing a day again replaces its rows.
    at = datetime.combine(row.day_id, time(row.hour or 0), UTC)
    return RowKey(at=at, pk=row.topic_id)


def _after(rows: RateQuerySet, at: datetime, topic: int) -> RateQuerySet:
    """Narrow rates to those that come after a row."""
    same_hour = Q(hour=at.hour) | Q(hour=None)
    later_topic = same_hour & Q(topic__gt=topic)
    return rows.filter(day__lte=at.date()).filter(
        Q(day__lt=at.date()) | Q(hour__lt=at.hour) | later_topic
    )
