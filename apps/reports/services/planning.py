"""Plan the days of a nightly run: yesterday, missing days, and changed days.

A late row changes the day on which it happened. Rows have the id of the transaction
that wrote them, and a run stores its snapshot: a row that the run of a published day
did not see is late. No row is late by more than 30 days (see capture), and rows
captured before the last night's check are not checked again.

The calls and deliveries of endpoints have no such id: a day on which there are more of
them than were published has changed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta

from django.db import connection

from apps.reports import delivery_retention_days
from apps.reports.errors import RunInTheWay
from apps.reports.models import Day, Run
from apps.reports.querysets import RunQuerySet
from apps.reports.report_run_states import RunState
from apps.reports.services.report_requests import NIGHTLY, ONE_DAY, newest_over, queue

log = logging.getLogger(__name__)

OLDEST_EVENT = timedelta(days=31)
# The longest range of one run: repeating a longer one would only cost more.
MOST_AT_ONCE = 31
MOST_FAILURES = 3
FAILURES_COUNT_FOR = timedelta(hours=24)
# A night's report should be published this long after its hour.
OVERDUE_AFTER = timedelta(hours=1)


def is_overdue(newest: date, *, hour: int, now: datetime) -> bool:
    """Tell whether a night has passed since `newest` without a newer report."""
    return newest < newest_over(now - timedelta(hours=hour) - OVERDUE_AFTER)


def plan(*, hour: int, now: datetime) -> list[Run]:
    """Queue the report runs of a night, if its hour has come; idempotent."""
    newest = newest_over(now - timedelta(hours=hour))
    due = _failed_nights(now=now)
    # One check per night; a requested run of the newest day does not count as one.
    is_checked = _nightly_runs().covering(newest).filter(state=RunState.DONE).exists()
    if not is_checked and _may_run(newest, now=now):
        due |= _missing_and_changed(newest, now=now)
    free = {day for day in due if _may_run(day, now=now)}
    return list(_queue_all(ranges(free, alone=_failed_lately(free, now=now)), now=now))


def _queue_all(ranges: Iterable[tuple[date, date]], *, now: datetime) -> Iterator[Run]:
    """Queue a report run for each range of days that no other run covers.

    A worker never waits for a run: the next plan finds the days that are still due.
    """
    for first, last in ranges:
        try:
            yield queue(first_day=first, last_day=last, actor=NIGHTLY, now=now)
        except RunInTheWay as obstacle:
            log.info("no night from %s to %s for now: %s", first, last, obstacle)


def ranges(
    days: Iterable[date], *, alone: Collection[date] = ()
) -> Iterator[tuple[date, date]]:
    """Join a report's consecutive days: (first, last) of each range, in order.

    Each day in `alone` is a range of its own, and no range exceeds MOST_AT_ONCE days.
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


def _nightly_runs() -> RunQuerySet:
    """Select the report runs that the nightly plan queued."""
    return Run.objects.filter(asked_by=str(NIGHTLY))


def _failed_nights(*, now: datetime) -> set[date]:
    """List the days of failed nightly reports that no later run has published."""
    failed = _nightly_runs().failed().filter(finished_at__gt=now - OLDEST_EVENT)
    return {
        day
        for run in failed
        for day in days_of(run)
        if not Day.objects.filter(day=day, run__gt=run.pk).exists()
    }


def _failed_lately(days: Collection[date], *, now: datetime) -> set[date]:
    """Return those of these days whose report failed lately.

    They must not hold back their neighbours.
    """
    failed = Run.objects.failed().filter(finished_at__gt=now - FAILURES_COUNT_FOR)
    return {day for run in failed for day in days_of(run)} & {*days}


def days_of(run: Run) -> list[date]:
    """List the days of a report run."""
    return [run.first_day + timedelta(days=n) for n in range(run.days)]


def _may_run(day: date, *, now: datetime) -> bool:
    """Tell whether a day may be reported: no run of it waits or is at work.

    Nor may its runs have failed too often lately.
    """
    runs = Run.objects.covering(day)
    lately = runs.failed().filter(finished_at__gt=now - FAILURES_COUNT_FOR)
    return not runs.unfinished().exists() and lately.count() < MOST_FAILURES


# After a restore Postgres starts its transaction ids again: then only times compare.
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

# Days whose deliveries may be deleted by now are not compared.
_CHANGED_ENDPOINTS = f"""
WITH fact AS (
    SELECT (minute AT TIME ZONE 'UTC')::date AS day, endpoint_id,
           succeeded_at_first + succeeded_later + failed AS calls, 0 AS ended
    FROM redelivery_call_count WHERE minute >= %(from)s AND minute < %(until)s
    UNION ALL
    SELECT (finished_at AT TIME ZONE 'UTC')::date, endpoint_id, 0, 1
    FROM redelivery_delivery WHERE finished_at >= %(from)s AND finished_at < %(until)s
), counted AS (
    SELECT fact.day, topic.id AS topic_id, sum(calls) AS calls, sum(ended) AS ended,
           %(now)s > (fact.day + {delivery_retention_days.DAYS})::timestamp
                     AT TIME ZONE 'UTC' AS is_partial
    FROM fact JOIN redelivery_endpoint endpoint ON endpoint.id = fact.endpoint_id
    JOIN brokers_topic topic ON topic.id = endpoint.topic_id
    GROUP BY fact.day, topic.id
)
SELECT DISTINCT counted.day FROM counted
LEFT JOIN reports_day day ON day.day = counted.day
LEFT JOIN reports_endpoint_day published
    ON published.day_id = counted.day AND published.topic_id = counted.topic_id
WHERE day.day IS NULL OR NOT day.counts_endpoints OR NOT counted.is_partial
  AND (counted.calls > coalesce(published.calls, 0)
       OR counted.ended > coalesce(published.timed + published.given_up
                                   + published.dropped + published.forwarded, 0))
"""  # noqa: S608 - made of our own words


def _missing_and_changed(newest: date, *, now: datetime) -> set[date]:
    """Return the days to report: unpublished, with late rows, and the newest."""
    checked = _last_check()
    oldest = min(checked or newest, newest) - OLDEST_EVENT
    since = checked - ONE_DAY if checked else oldest
    values = {"since": since, "oldest": oldest}
    with connection.cursor() as cursor:
        cursor.execute(_CHANGED, {**values, "newest": newest})
        changed = {day for (day,) in cursor.fetchall()}
        cursor.execute(
            _CHANGED_ENDPOINTS,
            {
                "from": datetime.combine(oldest, time.min, UTC),
                "until": datetime.combine(newest + ONE_DAY, time.min, UTC),
                "now": now,
            },
        )
        changed |= {day for (day,) in cursor.fetchall()}
    published = set(Day.objects.filter(day__gte=oldest).values_list("day", flat=True))
    # Before the first event no day is missing.
    first = min(published | changed, default=newest + ONE_DAY)
    every = {first + timedelta(days=n) for n in range((newest - first).days + 1)}
    # A day without events is reported too: otherwise it would be a gap. The newest day
    # is always reported: its run records that this night has checked.
    return changed | (every - published) | ({newest} & every)


def _last_check() -> date | None:
    """Return on which day the last successful nightly report checked the rows.

    None without one. The caller subtracts a day: a transaction may start before
    midnight and end after.
    """
    successes = _nightly_runs().filter(state=RunState.DONE).recent_first()
    asked_at = successes.values_list("asked_at", flat=True).first()
    return asked_at.date() if asked_at else None
