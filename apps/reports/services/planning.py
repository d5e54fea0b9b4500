"""Which days the night has to make: yesterday, days missed, and days that changed.

A row that comes late changes the day on which it happened. Rows bear the id of the
transaction that wrote them, and a run notes which transactions it saw: what a published
day's run did not see is late. Nothing is late by more than 30 days (see capture), and
what was captured before the last night's look needs no second one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta
from itertools import pairwise

from django.db import connection

from apps.reports.models import Day, Run
from apps.reports.services.requests import NIGHTLY, ONE_DAY, newest_over, queue
from apps.reports.states import State

OLDEST_EVENT = timedelta(days=31)
MOST_FAILURES = 3
FAILURES_COUNT_FOR = timedelta(hours=24)


def plan(*, hour: int, now: datetime) -> list[Run]:
    """Queue what the night has to make, if its hour has come; idempotent."""
    newest = newest_over(now - timedelta(hours=hour))
    if Day.objects.filter(day=newest).exists() and not _unmade():
        return []
    wanted = _missing_and_changed(newest) | _unmade()
    free = sorted(day for day in wanted if _may_be_made(day, now=now))
    return [
        queue(first_day=first, last_day=last, actor=NIGHTLY, now=now)
        for first, last in ranges(free)
    ]


def ranges(days: Iterable[date]) -> Iterator[tuple[date, date]]:
    """Join days that follow one another: (first, last) of each range, in order."""
    ordered = sorted(set(days))
    breaks = [b for a, b in pairwise(ordered) if b - a > ONE_DAY]
    starts = [*ordered[:1], *breaks]
    ends = [*(a for a, b in pairwise(ordered) if b - a > ONE_DAY), *ordered[-1:]]
    return zip(starts, ends, strict=True)


def _unmade() -> set[date]:
    """List the days of failed nights that nobody has made since."""
    failed = Run.objects.failed().filter(asked_by=str(NIGHTLY))
    return {
        day
        for run in failed.recent_first()[:MOST_FAILURES]
        for day in days_of(run)
        if not Day.objects.filter(day=day, run__gt=run.pk).exists()
    }


def days_of(run: Run) -> list[date]:
    return [run.first_day + timedelta(days=n) for n in range(run.days)]


def _may_be_made(day: date, *, now: datetime) -> bool:
    runs = Run.objects.covering(day)
    lately = runs.failed().filter(finished_at__gt=now - FAILURES_COUNT_FOR)
    return not runs.unfinished().exists() and lately.count() < MOST_FAILURES


_CHANGED = """
WITH captured AS (
    SELECT (failed_at AT TIME ZONE 'UTC')::date AS day, captured_xid
    FROM poison_failure WHERE day >= %(since)s
    UNION ALL
    SELECT (minute AT TIME ZONE 'UTC')::date, captured_xid
    FROM capture_counter WHERE day >= %(since)s
)
SELECT DISTINCT captured.day FROM captured
LEFT JOIN reports_day published ON published.day = captured.day
LEFT JOIN reports_run run ON run.id = published.run_id
WHERE captured.day BETWEEN %(oldest)s AND %(newest)s
  AND (run.id IS NULL OR NOT pg_visible_in_snapshot(captured_xid, run.snapshot))
"""


def _missing_and_changed(newest: date) -> set[date]:
    oldest = newest - OLDEST_EVENT
    values = {"since": _since(oldest), "oldest": oldest, "newest": newest}
    with connection.cursor() as cursor:
        cursor.execute(_CHANGED, values)
        changed = {day for (day,) in cursor.fetchall()}
    published = set(Day.objects.filter(day__gte=oldest).values_list("day", flat=True))
    # Before anything ever happened there is nothing to be missed.
    first = min(published | changed, default=newest + ONE_DAY)
    every = {first + timedelta(days=n) for n in range((newest - first).days + 1)}
    # A day on which nothing happened is reported, too: only then it is no gap.
    return changed | (every - published)


def _since(oldest: date) -> date:
    """Give the first day of capture that the last good night has not looked at."""
    nights = Run.objects.filter(asked_by=str(NIGHTLY), state=State.DONE)
    last = nights.recent_first().values_list("asked_at", flat=True).first()
    # A transaction may take its time from before midnight and end after it.
    return max(oldest, last.date() - ONE_DAY) if last else oldest
