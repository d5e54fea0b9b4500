"""Read how often problems and topics failed in each of the last 24 hours.

The numbers are kept by ten minutes (`apps.poison.models.counts`), so the last of these
hours ends with the ten minutes that run now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection

from apps.poison.models.counts import SLICE

HOURS = 24
_EPOCH = datetime.fromtimestamp(0, UTC)

# What pages list together is read once, at one moment: problems, and topics.
_COUNTED = """
SELECT problem_id, topic_id,
       (extract(epoch FROM hour - %(since)s::timestamptz) / 3600)::int, number
FROM (
    SELECT problem_id, topic_id, date_bin('1 hour', begins_at, %(since)s) AS hour,
           sum(number)::bigint AS number
    FROM (
        SELECT problem_id, NULL::bigint AS topic_id, begins_at, number
        FROM poison_failure_count
        WHERE problem_id = ANY(%(problems)s::bigint[])
        UNION ALL
        SELECT problem_id, NULL, begins_at, number FROM poison_failure_count_change
        WHERE problem_id = ANY(%(problems)s::bigint[])
        UNION ALL
        SELECT NULL, topic_id, begins_at, number FROM poison_failure_count
        WHERE problem_id = 0 AND topic_id = ANY(%(topics)s::bigint[])
        UNION ALL
        SELECT NULL, problem.topic_id, begins_at, number
        FROM poison_failure_count_change
        JOIN poison_problem problem ON problem.id = problem_id
        WHERE problem.topic_id = ANY(%(topics)s::bigint[])
    ) one
    WHERE begins_at >= %(since)s AND begins_at < %(until)s
    GROUP BY 1, 2, 3
) by_hour
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureHours:
    """Failures in each of the last 24 hours, the oldest hour first, by id."""

    by_problem: dict[int, list[int]]
    by_topic: dict[int, list[int]]


def count(
    *, problems: Sequence[int] = (), topics: Sequence[int] = (), now: datetime
) -> FailureHours:
    """Count the failures of problems in each of the last 24 hours.

    Also those of all problems of topics.
    """
    by_problem = {pk: [0] * HOURS for pk in problems}
    by_topic = {pk: [0] * HOURS for pk in topics}
    until = slice_of(now) + SLICE
    values: dict[str, Any] = {
        "since": until - timedelta(hours=HOURS),
        "until": until,
        "problems": list(problems),
        "topics": list(topics),
    }
    with connection.cursor() as cursor:
        cursor.execute(_COUNTED, values)
        for problem, topic, hour, number in cursor.fetchall():
            hours = by_topic[topic] if problem is None else by_problem[problem]
            hours[hour] = number
    return FailureHours(by_problem=by_problem, by_topic=by_topic)


def slice_of(moment: datetime) -> datetime:
    """Return the start of the ten minutes of the clock in which a moment lies."""
    return moment - (moment - _EPOCH) % SLICE
