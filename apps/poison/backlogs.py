"""How many poisons are in which state, by topic and by problem.

Each number is counted no further than asked, so that no backlog makes it expensive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from apps.poison.states import SHOWN, Shown, State


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


# One index look-up for each problem and state; nothing is read from the table itself.
_BY_STATE = """
SELECT problem.id, state.name, counted.number
FROM unnest(%(problems)s::bigint[]) AS problem(id),
     unnest(%(states)s::text[]) AS state(name),
LATERAL (
    SELECT count(*) AS number FROM (
        SELECT FROM poison_poison
        WHERE problem_id = problem.id AND state = state.name LIMIT %(most)s
    ) few
) counted
WHERE counted.number > 0
"""


def by_problem(problems: Sequence[int], *, most: int) -> dict[int, dict[Shown, int]]:
    """Count the poisons of each problem by the word a page shows, each up to `most`."""
    counts = {problem: dict.fromkeys(Shown, 0) for problem in problems}
    ids, states = list(problems), [state.value for state in State]
    with connection.cursor() as cursor:
        cursor.execute(_BY_STATE, {"problems": ids, "states": states, "most": most})
        for problem, state, number in cursor.fetchall():
            word = SHOWN[State(state)]
            counts[problem][word] = min(counts[problem][word] + number, most)
    return counts


# One index look-up for each problem; nothing is read from the table itself.
_OPEN = """
SELECT problem.id, problem.topic_id, opened.number
FROM (
    SELECT id, topic_id, last_seen FROM poison_problem
    WHERE %(topics)s::bigint[] IS NULL OR topic_id = ANY(%(topics)s)
    ORDER BY last_seen DESC, id DESC LIMIT %(problems)s
) problem,
LATERAL (
    SELECT count(*) AS number FROM (
        SELECT FROM poison_poison
        WHERE problem_id = problem.id AND state = 'open' LIMIT %(most)s
    ) few
) opened
ORDER BY problem.last_seen DESC, problem.id DESC
"""


@dataclass(frozen=True, slots=True)
class OpenProblem:
    """A problem, and how many of its poisons are open."""

    problem: int
    topic: int
    open: int


def open_by_problem(
    *, topics: Sequence[int] | None, problems: int, most: int
) -> list[OpenProblem]:
    """Count the open poisons of the problems that failed last, latest first.

    Looks at so many `problems` of these topics (None is every topic), and counts each
    up to `most`.
    """
    ids = None if topics is None else list(topics)
    with connection.cursor() as cursor:
        cursor.execute(_OPEN, {"topics": ids, "problems": problems, "most": most})
        return [OpenProblem(*row) for row in cursor.fetchall()]


# Recurrences are in no index, so that only the newest open poisons are looked at.
_CAME_BACK = """
SELECT problem.id, newest.number
FROM unnest(%(problems)s::bigint[]) AS problem(id),
LATERAL (
    SELECT count(*) FILTER (WHERE recurrences > 0) AS number FROM (
        SELECT recurrences FROM poison_poison
        WHERE problem_id = problem.id AND state = 'open'
        ORDER BY last_failed_at DESC, id DESC LIMIT %(most)s
    ) few
) newest
WHERE newest.number > 0
"""


def came_back(problems: Sequence[int], *, most: int) -> dict[int, int]:
    """Count, among each problem's newest `most` open poisons, those requeued before."""
    with connection.cursor() as cursor:
        cursor.execute(_CAME_BACK, {"problems": list(problems), "most": most})
        return dict(cursor.fetchall())
