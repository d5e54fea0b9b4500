"""Publish the staged rows of a run: all at once, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from django.db import connection, models, transaction

from apps.core.shared_postgres_snapshot import Snapshot
from apps.reports import delivery_retention_days
from apps.reports.errors import TakenOver
from apps.reports.models import Day, EndpointDay, ProblemDay, Rate, Run
from apps.reports.report_run_states import RunState

STAGED = ("reports_staged_rate", "reports_staged_problem", "reports_staged_endpoint")
# Those whose rows name a topic.
_STAGED_BY_TOPIC = ("reports_staged_rate", "reports_staged_endpoint")

# The staged tables name days, topics and problems by `day`, `topic` and `problem`; what
# is partial, Postgres knows.
_KEYS = {"id", "day_id", "topic_id", "problem_id", "is_partial"}


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
    UNION
    SELECT topic FROM reports_staged_endpoint
    WHERE run_id = %(run)s AND epoch = %(epoch)s
) ORDER BY id FOR KEY SHARE
"""

_DELETE_REMOVED_TOPICS = """
DELETE FROM {table}
WHERE run_id = %(run)s AND epoch = %(epoch)s AND topic = ANY(%(existing)s)
  AND topic NOT IN (SELECT name FROM brokers_topic)
"""

_PROBLEMS = f"""
INSERT INTO reports_problem_day (day_id, problem_id, {_shared_columns(ProblemDay)})
SELECT day, problem, {_shared_columns(ProblemDay)} FROM reports_staged_problem
WHERE run_id = %(run)s AND epoch = %(epoch)s
"""  # noqa: S608 - made of our own words

_ENDPOINTS = f"""
INSERT INTO reports_endpoint_day
    (day_id, topic_id, is_partial, {_shared_columns(EndpointDay)})
SELECT day, topic.id,
       run.as_of > (day + {delivery_retention_days.DAYS})::timestamp AT TIME ZONE 'UTC',
       {_shared_columns(EndpointDay)}
FROM reports_staged_endpoint staged
JOIN brokers_topic topic ON topic.name = staged.topic
JOIN reports_run run ON run.id = staged.run_id
WHERE run_id = %(run)s AND staged.epoch = %(epoch)s
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
    published = list(EndpointDay.objects.filter(day__in=list(rows)))
    Day.objects.filter(day__in=list(rows)).delete()
    Day.objects.bulk_create(
        Day(
            day=day,
            run=run,
            rows_in=each.total,
            late_rows=each.late,
            counts_endpoints=True,
        )
        for day, each in rows.items()
    )
    if _copy_staged(run) != staged:
        raise TakenOver
    _publish_fuller_again(published)
    delete_staged(run)


def _copy_staged(run: Run) -> int:
    """Copy the run's staged rows to the published tables; return their number."""
    values, number = {"run": run.pk, "epoch": run.epoch}, 0
    with connection.cursor() as cursor:
        cursor.execute(_LOCK_TOPICS, values)
        for statement in (_RATES, _PROBLEMS, _ENDPOINTS):
            cursor.execute(statement, values)
            number += cursor.rowcount
    return number


def _publish_fuller_again(published: Sequence[EndpointDay]) -> None:
    """Restore published rows of a report whose deliveries may be deleted by now.

    The counts of a removed endpoint are deleted with it: then there is no new row.
    """
    days = {row.day_id for row in published}
    new = {
        (row.day_id, row.topic_id): row
        for row in EndpointDay.objects.filter(day__in=days)
    }
    places = [(row, new.get((row.day_id, row.topic_id))) for row in published]
    fuller = [
        (row, other) for row, other in places if other is None or other.is_partial
    ]
    EndpointDay.objects.filter(pk__in=[each.pk for _, each in fuller if each]).delete()
    EndpointDay.objects.bulk_create(row for row, _ in fuller)


def delete_staged(run: Run | None = None) -> None:
    """Delete the staged rows of a report run; without one, of all runs.

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
    """Delete a report's staged rows of topics that were removed meanwhile.

    Such a topic had no records: only its broker's delivery counts were staged, or the
    calls of an endpoint that was removed before it.
    """
    existing = [
        name for (name,) in snapshot.query("SELECT name FROM brokers_topic", {})
    ]
    values: dict[str, Any] = {"run": run.pk, "epoch": run.epoch, "existing": existing}
    with connection.cursor() as cursor:
        for table in _STAGED_BY_TOPIC:
            cursor.execute(_DELETE_REMOVED_TOPICS.format(table=table), values)


def count_staged(run: Run) -> int:
    """Count the rows that this start of a report run has staged."""
    number = 0
    with connection.cursor() as cursor:
        for table in STAGED:
            cursor.execute(
                f"SELECT count(*) FROM {table} WHERE run_id = %s AND epoch = %s",  # noqa: S608 - ours
                [run.pk, run.epoch],
            )
            number += cursor.fetchone()[0]
    return number
