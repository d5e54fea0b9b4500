"""Which days the night has to make: yesterday, days missed, and days that changed.

A row that comes late changes the day on which it happened. Rows bear the id of the
transaction that wrote them, and a run notes which transactions it saw: what a published
day's run did not see is late. Nothing is late by more than 30 days (see capture), and
what was captured before the last night's look needs no second one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from datetime import date, datetime, timedelta

from django.db import connection

from apps.reports.errors import RunInTheWay
from apps.reports.models import Day, Run
from apps.reports.querysets import RunQuerySet
from apps.reports.services.requests import NIGHTLY, ONE_DAY, newest_over, queue
from apps.reports.states import State

log = logging.getLogger(__name__)

OLDEST_EVENT = timedelta(days=31)
# A range that is made at once: more would only cost more to make again.
MOST_AT_ONCE = 31
MOST_FAILURES = 3
FAILURES_COUNT_FOR = timedelta(hours=24)
# So long after its hour a night's report should be there.
OVERDUE_AFTER = timedelta(hours=1)


def is_overdue(newest: date, *, hour: int, now: datetime) -> bool:
    """Tell whether a night has passed since this day without publishing a newer one."""
    return newest < newest_over(now - timedelta(hours=hour) - OVERDUE_AFTER)


def plan(*, hour: int, now: datetime) -> list[Run]:
    """Queue what the night has to make, if its hour has come; idempotent."""
    newest = newest_over(now - timedelta(hours=hour))
    wanted = _unmade(now=now)
    # One look for each night; what another run of that day published is no look.
    looked = _nights().covering(newest).filter(state=State.DONE).exists()
    if not looked and _may_be_made(newest, now=now):
        wanted |= _missing_and_changed(newest)
    free = {day for day in wanted if _may_be_made(day, now=now)}
    return list(_queued(ranges(free, alone=_failed_lately(free, now=now)), now=now))


def _queued(ranges: Iterable[tuple[date, date]], *, now: datetime) -> Iterator[Run]:
    """Queue a run for each range, but leave out days that another run makes by now.

    A worker waits for no run: the next look sees what that run has left to be made.
    """
    for first, last in ranges:
        try:
            yield queue(first_day=first, last_day=last, actor=NIGHTLY, now=now)
        except RunInTheWay as obstacle:
            log.info("no night from %s to %s for now: %s", first, last, obstacle)


def ranges(
    days: Iterable[date], *, alone: Collection[date] = ()
) -> Iterator[tuple[date, date]]:
    """Join days that follow one another: (first, last) of each range, in order.

    Days that are to be `alone` are joined with none, and no range is longer than a run
    should be.
    """
    first = last = None
    for day in sorted(set(days)):
        joins = (
            last is not None and day - last == ONE_DAY and not {day, last} & {*alone}
        )
        if first is None or last is None:
            first = day
        elif not joins or (day - first).days >= MOST_AT_ONCE:
            yield first, last
            first = day
        last = day
    if first is not None and last is not None:
        yield first, last


def _nights() -> RunQuerySet:
    return Run.objects.filter(asked_by=str(NIGHTLY))


def _unmade(*, now: datetime) -> set[date]:
    """List the days of failed nights that nobody has made since."""
    failed = _nights().failed().filter(finished_at__gt=now - OLDEST_EVENT)
    return {
        day
        for run in failed
        for day in days_of(run)
        if not Day.objects.filter(day=day, run__gt=run.pk).exists()
    }


def _failed_lately(days: Collection[date], *, now: datetime) -> set[date]:
    """Keep the days that failed: one of them must not hold back its neighbours."""
    failed = Run.objects.failed().filter(finished_at__gt=now - FAILURES_COUNT_FOR)
    return {day for run in failed for day in days_of(run)} & {*days}


def days_of(run: Run) -> list[date]:
    return [run.first_day + timedelta(days=n) for n in range(run.days)]


def _may_be_made(day: date, *, now: datetime) -> bool:
    runs = Run.objects.covering(day)
    lately = runs.failed().filter(finished_at__gt=now - FAILURES_COUNT_FOR)
    return not runs.unfinished().exists() and lately.count() < MOST_FAILURES


# After a restore Postgres counts its transactions anew, and only the time tells.
_CHANGED = """
WITH captured AS (
    SELECT (failed_at AT TIME ZONE 'UTC')::date AS day, captured_xid, captured_at
    FROM poison_failure WHERE day >= %(since)s
    UNION ALL
    SELECT (minute AT TIME ZONE 'UTC')::date, captured_xid, captured_at
    FROM capture_counter WHERE day >= %(since)s
)
SELECT DISTINCT captured.day FROM captured
LEFT JOIN reports_day published ON published.day = captured.day
LEFT JOIN reports_run run ON run.id = published.run_id
WHERE captured.day BETWEEN %(oldest)s AND %(newest)s
  AND (run.id IS NULL OR captured_at > run.as_of
       OR NOT pg_visible_in_snapshot(captured_xid, run.snapshot))
"""


def _missing_and_changed(newest: date) -> set[date]:
    looked = _last_look()
    oldest = min(looked or newest, newest) - OLDEST_EVENT
    since = looked - ONE_DAY if looked else oldest
    values = {"since": since, "oldest": oldest}
    with connection.cursor() as cursor:
        cursor.execute(_CHANGED, {**values, "newest": newest})
        changed = {day for (day,) in cursor.fetchall()}
    published = set(Day.objects.filter(day__gte=oldest).values_list("day", flat=True))
    # Before anything ever happened there is nothing to be missed.
    first = min(published | changed, default=newest + ONE_DAY)
    every = {first + timedelta(days=n) for n in range((newest - first).days + 1)}
    # A day on which nothing happened is reported, too: only then it is no gap. And the
    # newest is, whoever published it before: that this night looked is known by it.
    return changed | (every - published) | ({newest} & every)


def _last_look() -> date | None:
    """Give the day of the last good night: what it saw needs no second look.

    A transaction may take its time from before midnight and end after it.
    """
    done = _nights().filter(state=State.DONE).recent_first()
    asked_at = done.values_list("asked_at", flat=True).first()
    return asked_at.date() if asked_at else None
