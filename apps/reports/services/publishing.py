"""Publish the staged rows of a run: all at once, or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from django.db import connection, models, transaction

from apps.core.shared_postgres_snapshot import Snapshot
from apps.reports.errors import TakenOver
from apps.reports.models import Day, ProblemDay, Rate, Run
from apps.reports.states import RunState

STAGED = ("reports_staged_rate", "reports_staged_problem")

# The staged tables name days, topics and problems by `day`, `topic` and `problem`.
_KEYS = {"id", "day_id", "topic_id", "problem_id"}


def _shared_columns(published: type[models.Model]) -> str:
    """List the columns that a published table and its staged table both have."""
    fields = published._meta.concrete_fields  # noqa: SLF001 - documented by Django
    columns = [field.attname for field in fields]
    return ", ".join(column for column in columns if column not in _KEYS)


_RATES = f"""
INSERT INTO reports_rate (day_id, topic_id, {_shared_columns(Rate)})
SELECT day, topic.id, {_shared_columns(Rate)}
FROM reports_staged_rate staged JOIN brokers_topic topic ON topic.name = staged.topic
WHERE run_id = %(run)s AND epoch = %(epoch)s
"""  # noqa: S608 - made of our own words

# Lock the topics: none can be removed before its rates are published.
_LOCK_TOPICS = """
SELECT id FROM brokers_topic WHERE name IN (
    SELECT topic FROM reports_staged_rate
    WHERE run_id = %(run)s AND epoch = %(epoch)s
) ORDER BY id FOR KEY SHARE
"""

_DELETE_REMOVED_TOPICS = """
DELETE FROM reports_staged_rate
WHERE run_id = %(run)s AND epoch = %(epoch)s AND topic = ANY(%(existing)s)
  AND topic NOT IN (SELECT name FROM brokers_topic)
"""

_PROBLEMS = f"""
INSERT INTO reports_problem_day (day_id, problem_id, {_shared_columns(ProblemDay)})
SELECT day, problem, {_shared_columns(ProblemDay)} FROM reports_staged_problem
WHERE run_id = %(run)s AND epoch = %(epoch)s
"""  # noqa: S608 - made of our own words


@dataclass(frozen=True, kw_only=True, slots=True)
class DayRows:
    """How many facts a day has, and how many of them its last report had not seen."""

    total: int
    late: int


@transaction.atomic
def publish(
    *, run: Run, rows: Mapping[date, DayRows], staged: int, now: datetime
) -> None:
    """Replace the run's days by its staged rows; `rows` has every one of its days.

    Raises TakenOver when another start of the run has begun meanwhile, or when some of
    the checked staged rows are gone.
    """
    same = Run.objects.select_for_update().filter(pk=run.pk, epoch=run.epoch)
    number = same.transition(
        to=RunState.DONE,
        finished_at=now,
        rows_in=sum(each.total for each in rows.values()),
        late_rows=sum(each.late for each in rows.values()),
    )
    if not number:
        raise TakenOver
    Day.objects.filter(day__in=list(rows)).delete()
    Day.objects.bulk_create(
        Day(day=day, run=run, rows_in=each.total, late_rows=each.late)
        for day, each in rows.items()
    )
    if _copy_staged(run) != staged:
        raise TakenOver
    delete_staged(run)


def _copy_staged(run: Run) -> int:
    """Copy the run's staged rows to the published tables; return their number."""
    values, number = {"run": run.pk, "epoch": run.epoch}, 0
    with connection.cursor() as cursor:
        cursor.execute(_LOCK_TOPICS, values)
        for statement in (_RATES, _PROBLEMS):
            cursor.execute(statement, values)
            number += cursor.rowcount
    return number


def delete_staged(run: Run | None = None) -> None:
    """Delete the staged rows of a run; without one, of all runs, before a new start.

    A run that lost its lock finds its rows gone, and publishes nothing.
    """
    values = {"run": run.pk if run else None}
    with connection.cursor() as cursor:
        for table in STAGED:
            cursor.execute(
                f"DELETE FROM {table} WHERE run_id = coalesce(%(run)s, run_id)",  # noqa: S608 - ours
                values,
            )


def delete_removed_topics(run: Run, snapshot: Snapshot) -> None:
    """Delete the staged rows of topics in the snapshot that were removed meanwhile.

    Such a topic had no records: only its broker's delivery counts were staged.
    """
    existing = [name for (name,) in snapshot.ask("SELECT name FROM brokers_topic", {})]
    values: dict[str, Any] = {"run": run.pk, "epoch": run.epoch, "existing": existing}
    with connection.cursor() as cursor:
        cursor.execute(_DELETE_REMOVED_TOPICS, values)


def count_staged(run: Run) -> int:
    """Count the rows that this start of a run has staged."""
    number = 0
    with connection.cursor() as cursor:
        for table in STAGED:
            cursor.execute(
                f"SELECT count(*) FROM {table} WHERE run_id = %s AND epoch = %s",  # noqa: S608 - ours
                [run.pk, run.epoch],
            )
            number += cursor.fetchone()[0]
    return number
