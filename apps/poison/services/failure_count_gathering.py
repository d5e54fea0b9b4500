"""Gather the counts of failures by ten minutes, and check them against the failures.

A problem's change counts for its topic, too, once it is gathered. One of both may be
wrong alone, so a check mends what is gathered, and holds the lock of gathering.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction

from apps.core import advisory_locks
from apps.poison.failure_hours import slice_of
from apps.poison.models.counts import ALL_PROBLEMS

GATHERING = "gathering of failure counts"
# Changes of one transaction.
AT_ONCE = 50_000
# Longer than pages look back, by the clock of any process.
KEPT = timedelta(hours=25)

_BY_PROBLEM_AND_TOPIC = """
GROUP BY GROUPING SETS ((problem_id, topic_id, begins_at), (topic_id, begins_at))
"""
_ADD = """
INSERT INTO poison_failure_count AS known (problem_id, topic_id, begins_at, number)
{rows} ORDER BY 1, 2, 3
ON CONFLICT (problem_id, topic_id, begins_at)
    DO UPDATE SET number = known.number + excluded.number
"""

_GATHERED = f"""
SELECT coalesce(problem_id, {ALL_PROBLEMS}), topic_id, begins_at, sum(number)
FROM gone JOIN poison_problem problem ON problem.id = problem_id
{_BY_PROBLEM_AND_TOPIC} HAVING sum(number) <> 0
"""  # noqa: S608 - made of our own names
_GATHER = f"""
WITH gone AS (
    DELETE FROM poison_failure_count_change WHERE id IN (
        SELECT id FROM poison_failure_count_change ORDER BY id LIMIT %(most)s)
    RETURNING problem_id, begins_at, number
), stored AS ({_ADD.format(rows=_GATHERED)})
SELECT count(*) FROM gone
"""  # noqa: S608 - made of our own names

# The index by problem and time has no column for the day, by which failures are
# partitioned: a condition on it would read each row. So the partitions are named. A day
# without a partition of its own is in the default one, which comes last.
_PARTITIONS = """
SELECT relid::regclass::text FROM pg_partition_tree('poison_failure')
WHERE isleaf AND relid::regclass::text >= 'poison_failure_' || %(captured)s
"""
# Failures that stand for several have an index of their own.
_FAILURES = """
SELECT problem_id, failed_at, 1 AS number FROM {name}
UNION ALL SELECT problem_id, failed_at, times - 1 FROM {name} WHERE folds
"""
# The statement is one moment.
_DIFFERENCES = f"""
WITH there AS (
    SELECT problem_id, date_bin('10 minutes', failed_at, 'epoch') AS begins_at,
           sum(number) AS number
    FROM ({{failures}}) failure WHERE failed_at >= %(since)s GROUP BY 1, 2
    UNION ALL
    SELECT problem_id, begins_at, -number FROM poison_failure_count_change
), compared AS (
    SELECT coalesce(problem_id, {ALL_PROBLEMS}) AS problem_id, topic_id, begins_at,
           sum(number) AS number, 0 AS stored
    FROM there JOIN poison_problem problem ON problem.id = problem_id
    {_BY_PROBLEM_AND_TOPIC}
    UNION ALL
    SELECT problem_id, topic_id, begins_at, -number, number FROM poison_failure_count
)
SELECT problem_id, topic_id, begins_at, sum(number)::bigint AS missing,
       sum(stored)::bigint
FROM compared WHERE begins_at >= %(since)s
GROUP BY 1, 2, 3 HAVING sum(number) <> 0
ORDER BY abs(sum(number)) DESC, 1, 2, 3
"""  # noqa: S608 - made of our own names

_MEND = _ADD.format(
    rows="""
SELECT * FROM unnest(%(problems)s::bigint[], %(topics)s::bigint[],
                     %(begins)s::timestamptz[], %(missing)s::bigint[])
"""
)


@dataclass(frozen=True, slots=True)
class WrongFailureCount:
    """A count that was wrong: `missing` more failures are stored than were counted.

    It is without those that were not gathered.
    """

    problem: int
    topic: int
    begins_at: datetime
    missing: int
    counted: int

    def __str__(self) -> str:
        """Write which count of failures was wrong, and by how much."""
        there = self.counted + self.missing
        what = f"problem {self.problem} on " if self.problem != ALL_PROBLEMS else ""
        return (
            f"{what}topic {self.topic} in the ten minutes from "
            f"{self.begins_at:%Y-%m-%d %H:%M} UTC: {self.counted:,} failures instead "
            f"of {there:,}"
        )


def gather() -> int:
    """Add new failures to Postgres's counts by ten minutes that pages read.

    Returns how many changes it added.
    """
    gathered = 0
    while True:
        number = _gather_some()
        gathered += number
        if number < AT_ONCE:
            return gathered


@transaction.atomic
def _gather_some() -> int:
    # Two at the same time would wait for each other's rows, in no order.
    advisory_locks.wait_for(GATHERING)
    with connection.cursor() as cursor:
        cursor.execute(_GATHER, {"most": AT_ONCE})
        (number,) = cursor.fetchone()
        return int(number)


@transaction.atomic
def mend(*, now: datetime) -> list[WrongFailureCount]:
    """Count the failures of the last day; mend and return wrong counts of pages.

    Also forgets counts that pages need no more.
    """
    advisory_locks.wait_for(GATHERING)
    since = slice_of(now - KEPT)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM poison_failure_count WHERE begins_at < %s", [since])
        wrong = _differences(cursor, since)
        cursor.execute(
            _MEND,
            {
                "problems": [each.problem for each in wrong],
                "topics": [each.topic for each in wrong],
                "begins": [each.begins_at for each in wrong],
                "missing": [each.missing for each in wrong],
            },
        )
    return wrong


def _differences(cursor: Any, since: datetime) -> list[WrongFailureCount]:
    """Compare pages' stored counts of failures since a time with the failure rows."""
    # Clocks differ by minutes, so the day of capture may be the day before.
    captured = (since - timedelta(days=1)).strftime("%Y%m%d")
    cursor.execute(_PARTITIONS, {"captured": captured})
    names = [name for (name,) in cursor.fetchall()]
    failures = " UNION ALL ".join(_FAILURES.format(name=name) for name in names)
    cursor.execute(_DIFFERENCES.format(failures=failures), {"since": since})
    return [WrongFailureCount(*row) for row in cursor.fetchall()]
