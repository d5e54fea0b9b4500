"""Count poisons by state, for topics and for problems.

Each count stops at the given limit, so that no backlog makes it expensive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from apps.poison.states import DISPLAY_STATES, DisplayState, PoisonState


@dataclass(frozen=True, slots=True)
class Backlog:
    """The number of open poisons, and when the oldest of them failed last."""

    open: int
    oldest: datetime | None


# Topic by topic and problem by problem, so that each step is one index lookup.
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
    """Count the open poisons of each topic, up to `most`."""
    with connection.cursor() as cursor:
        cursor.execute(_BACKLOGS, {"ids": list(topics), "most": most})
        return {
            topic: Backlog(number, oldest)
            for topic, number, oldest in cursor.fetchall()
        }


# One index lookup for each problem and state, without reading the table.
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


def by_problem(
    problems: Sequence[int], *, most: int
) -> dict[int, dict[DisplayState, int]]:
    """Count the poisons of each problem by displayed state, each up to `most`."""
    counts = {problem: dict.fromkeys(DisplayState, 0) for problem in problems}
    ids, states = list(problems), [state.value for state in PoisonState]
    with connection.cursor() as cursor:
        cursor.execute(_BY_STATE, {"problems": ids, "states": states, "most": most})
        for problem, state, number in cursor.fetchall():
            label = DISPLAY_STATES[PoisonState(state)]
            counts[problem][label] = min(counts[problem][label] + number, most)
    return counts


# One index lookup for each problem, without reading the table.
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
    """A problem with the number of its open poisons."""

    problem: int
    topic: int
    open: int


def open_by_problem(
    *, topics: Sequence[int] | None, problems: int, most: int
) -> list[OpenProblem]:
    """Count the open poisons of the problems that failed last, latest first.

    Read at most `problems` problems of these topics (None is every topic), and count
    each up to `most`.
    """
    ids = None if topics is None else list(topics)
    with connection.cursor() as cursor:
        cursor.execute(_OPEN, {"topics": ids, "problems": problems, "most": most})
        return [OpenProblem(*row) for row in cursor.fetchall()]


# No index holds recurrences, so read only the newest open poisons.
_RECURRED = """
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


def recurred_by_problem(problems: Sequence[int], *, most: int) -> dict[int, int]:
    """Count, of each problem's newest `most` open poisons, those requeued before."""
    with connection.cursor() as cursor:
        cursor.execute(_RECURRED, {"problems": list(problems), "most": most})
        return dict(cursor.fetchall())
