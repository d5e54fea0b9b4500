"""From what a run has staged to what everybody sees: all of it at once, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from django.db import connection, transaction

from apps.core.snapshot import Snapshot
from apps.reports.errors import TakenOver
from apps.reports.models import Day, Run
from apps.reports.states import State

MEASURED = (
    "delivered, failed, poisoned, retried, redriven, confirmed, recurred, dropped,"
    " failure_rate, rate_low, rate_high"
)

STAGED = ("reports_staged_rate", "reports_staged_problem")

_RATES = f"""
INSERT INTO reports_rate (day_id, hour, topic_id, consumer_group, source, uncounted,
    skipped, {MEASURED}, p50_ms, p95_ms, p99_ms)
SELECT day, hour, topic.id, consumer_group, source, uncounted,
    skipped, {MEASURED}, p50_ms, p95_ms, p99_ms
FROM reports_staged_rate staged JOIN brokers_topic topic ON topic.name = staged.topic
WHERE run_id = %(run)s AND epoch = %(epoch)s
"""  # noqa: S608 - made of our own words

# A topic whose rate is published goes no more, and one that went has none.
_HOLD = """
SELECT id FROM brokers_topic WHERE name IN (
    SELECT topic FROM reports_staged_rate
    WHERE run_id = %(run)s AND epoch = %(epoch)s
) ORDER BY id FOR KEY SHARE
"""

_FORGET_REMOVED = """
DELETE FROM reports_staged_rate
WHERE run_id = %(run)s AND epoch = %(epoch)s AND topic = ANY(%(known)s)
  AND topic NOT IN (SELECT name FROM brokers_topic)
"""

_PROBLEMS = f"""
INSERT INTO reports_problem_day (day_id, problem_id, {MEASURED})
SELECT day, problem, {MEASURED} FROM reports_staged_problem
WHERE run_id = %(run)s AND epoch = %(epoch)s
"""  # noqa: S608 - made of our own words


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """How many facts a day is made of, and how many its last report had not seen."""

    total: int
    late: int


@transaction.atomic
def publish(*, run: Run, rows: Mapping[date, Rows], staged: int, now: datetime) -> None:
    """Replace the run's days by what it has staged; `rows` has every one of them.

    Raises TakenOver when another start of the run has begun meanwhile, or when some of
    the staged rows that were checked are there no more.
    """
    same = Run.objects.select_for_update().filter(pk=run.pk, epoch=run.epoch)
    done = same.transition(
        to=State.DONE,
        finished_at=now,
        rows_in=sum(each.total for each in rows.values()),
        late_rows=sum(each.late for each in rows.values()),
    )
    if not done:
        raise TakenOver
    Day.objects.filter(day__in=list(rows)).delete()
    Day.objects.bulk_create(
        Day(day=day, run=run, rows_in=each.total, late_rows=each.late)
        for day, each in rows.items()
    )
    if _copied(run) != staged:
        raise TakenOver
    forget_staged(run)


def _copied(run: Run) -> int:
    values, number = {"run": run.pk, "epoch": run.epoch}, 0
    with connection.cursor() as cursor:
        cursor.execute(_HOLD, values)
        for statement in (_RATES, _PROBLEMS):
            cursor.execute(statement, values)
            number += cursor.rowcount
    return number


def forget_staged(run: Run | None = None) -> None:
    """Delete what a run has staged; or all there is, which a new start need not keep.

    A run that lost its lock finds its rows gone, and publishes nothing.
    """
    values = {"run": run.pk if run else None}
    with connection.cursor() as cursor:
        for table in STAGED:
            cursor.execute(
                f"DELETE FROM {table} WHERE run_id = coalesce(%(run)s, run_id)",  # noqa: S608 - ours
                values,
            )


def forget_removed(run: Run, seen: Snapshot) -> None:
    """Delete what is staged of topics that were there, and were removed meanwhile.

    Such a topic had nothing on record: its broker alone told what it delivered.
    """
    known = [name for (name,) in seen.ask("SELECT name FROM brokers_topic", {})]
    values: dict[str, Any] = {"run": run.pk, "epoch": run.epoch, "known": known}
    with connection.cursor() as cursor:
        cursor.execute(_FORGET_REMOVED, values)


def staged(run: Run) -> int:
    """Count what this start of a run has staged."""
    number = 0
    with connection.cursor() as cursor:
        for table in STAGED:
            cursor.execute(
                f"SELECT count(*) FROM {table} WHERE run_id = %s AND epoch = %s",  # noqa: S608 - ours
                [run.pk, run.epoch],
            )
            number += cursor.fetchone()[0]
    return number
