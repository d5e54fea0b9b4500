"""Count the failures of the last 24 hours by the hour, from an index alone.

The index has no column for the day, by which failures are partitioned: a condition on
it would read each row. So the partitions are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.backends.utils import CursorWrapper

HOURS = 24
HOUR = timedelta(hours=1)
DAY = HOURS * HOUR

# The default partition comes last. A day without a partition of its own is in it.
_PARTITIONS = """
SELECT relid::regclass::text FROM pg_partition_tree('poison_failure')
WHERE isleaf AND relid::regclass::text >= 'poison_failure_' || %(captured)s
"""

# Failures that stand for several have an index of their own.
_FAILURES = """
SELECT problem_id, failed_at, 1 AS number FROM {name}
UNION ALL SELECT problem_id, failed_at, times - 1 FROM {name} WHERE folds
"""

# What pages list together is read once: problems, and the topics of all problems.
_COUNTED = """
WITH counted AS MATERIALIZED (
    SELECT problem_id, sum(number)::bigint AS number,
           -- A failure at the very end of an hour is of that hour.
           date_bin('1 hour', failed_at, %(now)s + interval '1 microsecond') AS began
    FROM ({failures}) failure
    WHERE problem_id = ANY(%(ids)s::bigint[])
      AND failed_at > %(since)s AND failed_at <= %(now)s
    GROUP BY problem_id, began
)
SELECT problem_id, NULL, began, number FROM counted
WHERE problem_id = ANY(%(problems)s::bigint[])
UNION ALL
SELECT NULL, topic_id, began, sum(number)::bigint
FROM counted JOIN poison_problem ON id = problem_id
WHERE topic_id = ANY(%(topics)s::bigint[]) GROUP BY topic_id, began
"""

_PROBLEMS = """
SELECT id FROM poison_problem
WHERE topic_id = ANY(%(topics)s::bigint[]) AND last_seen > %(since)s
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureHours:
    """Failures in each of the last 24 hours, the oldest hour first, by id."""

    by_problem: dict[int, list[int]]
    by_topic: dict[int, list[int]]


def count(
    *, problems: Sequence[int] = (), topics: Sequence[int] = (), now: datetime
) -> FailureHours:
    """Count the failures of problems, and of all problems of topics, by the hour."""
    by_problem = {pk: [0] * HOURS for pk in problems}
    by_topic = {pk: [0] * HOURS for pk in topics}
    values: dict[str, Any] = {
        "now": now,
        "since": now - DAY,
        "problems": list(problems),
        "topics": list(topics),
        # Clocks differ by minutes, so the day of capture may be the day before.
        "captured": (now - 2 * DAY).strftime("%Y%m%d"),
    }
    with connection.cursor() as cursor:
        values["ids"] = list({*problems, *_problems_of(cursor, values)})
        cursor.execute(_PARTITIONS, values)
        failures = " UNION ALL ".join(
            _FAILURES.format(name=name) for (name,) in cursor.fetchall()
        )
        cursor.execute(_COUNTED.format(failures=failures), values)
        for problem, topic, began, number in cursor.fetchall():
            hours = by_topic[topic] if problem is None else by_problem[problem]
            hours[(began - values["since"]) // HOUR] += number
    return FailureHours(by_problem=by_problem, by_topic=by_topic)


def _problems_of(cursor: CursorWrapper, values: dict[str, Any]) -> list[int]:
    """List the problems of the topics that failed in these hours."""
    if not values["topics"]:
        return []
    cursor.execute(_PROBLEMS, values)
    return [pk for (pk,) in cursor.fetchall()]
