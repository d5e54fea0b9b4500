"""What nobody has decided about yet, topic by topic.

It is counted no further than asked, so that it costs no more the longer nobody looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many poisons are open, and when the oldest of them failed last."""

    open: int
    oldest: datetime | None


# Topic by topic and problem by problem, so that each step is one look at an index.
_BACKLOGS = """
SELECT topic.id, opened.number, oldest.at
FROM unnest(%(ids)s::bigint[]) AS topic(id),
LATERAL (
    SELECT count(*) AS number FROM (
        SELECT FROM poison_problem problem
        JOIN poison_poison poison
          ON poison.problem_id = problem.id AND poison.state = 'open'
        WHERE problem.topic_id = topic.id LIMIT %(most)s
    ) few
) opened,
LATERAL (
    SELECT min(first.last_failed_at) AS at FROM poison_problem problem, LATERAL (
        SELECT last_failed_at FROM poison_poison
        WHERE problem_id = problem.id AND state = 'open'
        ORDER BY last_failed_at, id LIMIT 1
    ) first
    WHERE problem.topic_id = topic.id
) oldest
"""


def backlogs(*, topics: Sequence[int], most: int) -> dict[int, Backlog]:
    """Count the open poisons of these topics, in each of them up to `most`."""
    with connection.cursor() as cursor:
        cursor.execute(_BACKLOGS, {"ids": list(topics), "most": most})
        return {
            topic: Backlog(number, oldest)
            for topic, number, oldest in cursor.fetchall()
        }
