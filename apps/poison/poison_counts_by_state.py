"""Read how many poisons there are by state, for problems and topics.

The numbers are kept (`apps.poison.models.counts`): none of these reads the poisons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.db import connection

from apps.poison.models.counts import CAME_BACK, COUNTED_APART, GIVEN_BACK
from apps.poison.states import DISPLAY_STATES, DisplayState, PoisonState

# As far as they are gathered, and what was changed since; both at the same moment.
_NUMBERS = """
    SELECT problem_id, topic_id, state, number FROM poison_count {where}
    UNION ALL
    SELECT problem_id, topic_id, state, number FROM poison_count_change {where}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class StateCounts:
    """Poisons by displayed state.

    `given_back` are among the sent ones, `came_back` among the open ones.
    """

    states: dict[DisplayState, int]
    given_back: int
    came_back: int


_BY_PROBLEM = f"""
SELECT problem_id, state, sum(number)::bigint
FROM ({_NUMBERS.format(where="WHERE problem_id = ANY(%(ids)s::bigint[])")}) one
GROUP BY 1, 2
"""  # noqa: S608 - made of our own names

_BY_TOPIC = f"""
SELECT problem.topic_id, state, sum(number)::bigint
FROM ({_NUMBERS.format(where="")}) one
JOIN poison_problem problem ON problem.id = problem_id
WHERE problem.topic_id = ANY(%(ids)s::bigint[])
GROUP BY 1, 2
"""  # noqa: S608 - made of our own names


def by_problem(problems: Sequence[int]) -> dict[int, StateCounts]:
    """Count the poisons of each problem by state."""
    return _by_state(_BY_PROBLEM, problems)


def by_topic(topics: Sequence[int]) -> dict[int, StateCounts]:
    """Count the poisons of each topic by state, over all of its problems."""
    return _by_state(_BY_TOPIC, topics)


def _by_state(statement: str, ids: Sequence[int]) -> dict[int, StateCounts]:
    """Count the poisons of these problems or topics by state, by a statement."""
    counts: dict[int, Counter[str]] = {pk: Counter() for pk in ids}
    with connection.cursor() as cursor:
        cursor.execute(statement, {"ids": list(ids)})
        for pk, state, number in cursor.fetchall():
            counts[pk][state] = number
    return {pk: _displayed(each) for pk, each in counts.items()}


def _displayed(counts: Counter[str]) -> StateCounts:
    """Sum counts of poisons by the state that pages show."""
    states = dict.fromkeys(DisplayState, 0)
    for state, number in counts.items():
        own_state = COUNTED_APART.get(state) or PoisonState(state)
        states[DISPLAY_STATES[own_state]] += number
    return StateCounts(
        states=states, given_back=counts[GIVEN_BACK], came_back=counts[CAME_BACK]
    )


_OPEN = f"""
SELECT coalesce(sum(number), 0)::bigint
FROM ({
    _NUMBERS.format(
        where='''WHERE state IN ('open', 'came back')
      AND (%(topics)s::bigint[] IS NULL OR topic_id = ANY(%(topics)s))
      AND (%(problem)s::bigint IS NULL OR problem_id = %(problem)s)'''
    )
}) one
"""  # noqa: S608 - made of our own names


def open_number(*, topics: Sequence[int] | None, problem: int | None = None) -> int:
    """Count the open poisons captured on these topics; None is every topic.

    With `problem`, only those of this problem.
    """
    ids = None if topics is None else list(topics)
    with connection.cursor() as cursor:
        cursor.execute(_OPEN, {"topics": ids, "problem": problem})
        (number,) = cursor.fetchone()
        return int(number)


# One index lookup for each problem.
_OLDEST = """
SELECT problem.topic_id, min(first.last_failed_at)
FROM poison_problem problem, LATERAL (
    SELECT last_failed_at FROM poison_poison
    WHERE problem_id = problem.id AND state = 'open'
    ORDER BY last_failed_at, id LIMIT 1
) first
WHERE problem.topic_id = ANY(%(ids)s::bigint[]) GROUP BY 1
"""


def oldest_open(topics: Sequence[int]) -> dict[int, datetime]:
    """Return when the oldest open poison of each topic failed last, if there is one."""
    with connection.cursor() as cursor:
        cursor.execute(_OLDEST, {"ids": list(topics)})
        return dict(cursor.fetchall())


_OPENED = _NUMBERS.format(where="WHERE state IN ('open', 'came back')")
# The ids of the problems that have open poisons.
WITH_OPEN = f"""
SELECT problem_id FROM ({_OPENED}) one GROUP BY 1 HAVING sum(number) > 0
"""  # noqa: S608 - made of our own names
_BACKLOGS = f"""
SELECT problem.topic_id, sum(opened.number)::bigint, min(first.last_failed_at)
FROM poison_problem problem
JOIN (
    SELECT problem_id, sum(number) AS number FROM ({_OPENED}) one GROUP BY 1
) opened ON opened.problem_id = problem.id AND opened.number > 0
CROSS JOIN LATERAL (
    SELECT last_failed_at FROM poison_poison
    WHERE problem_id = problem.id AND state = 'open'
    ORDER BY last_failed_at, id LIMIT 1
) first
WHERE problem.topic_id = ANY(%(ids)s::bigint[]) GROUP BY 1
"""  # noqa: S608 - made of our own names


def open_by_topic(topics: Sequence[int]) -> dict[int, tuple[int, datetime]]:
    """Count the open poisons of each topic's problems, and date the oldest.

    Topics without open poisons are left out.
    """
    with connection.cursor() as cursor:
        cursor.execute(_BACKLOGS, {"ids": list(topics)})
        return {topic: (number, oldest) for topic, number, oldest in cursor.fetchall()}


# The first row is the sum for all problems: those that are not listed, too.
_OPEN_BY_PROBLEM = f"""
WITH opened AS MATERIALIZED (
    SELECT problem_id, sum(number)::bigint AS number,
           sum(number) FILTER (
               WHERE %(topics)s::bigint[] IS NULL OR topic_id = ANY(%(topics)s)
           ) AS visible
    FROM ({_OPENED}) one GROUP BY 1
)
SELECT id, topic_id, number FROM (
    SELECT NULL::bigint AS id, NULL::bigint AS topic_id, NULL::timestamptz AS last_seen,
           coalesce(sum(visible), 0)::bigint AS number
    FROM opened
    UNION ALL
    SELECT problem.id, problem.topic_id, problem.last_seen, coalesce(opened.number, 0)
    FROM (
        SELECT id, topic_id, last_seen FROM poison_problem
        WHERE %(topics)s::bigint[] IS NULL OR topic_id = ANY(%(topics)s)
        ORDER BY last_seen DESC, id DESC LIMIT %(problems)s
    ) problem
    LEFT JOIN opened ON opened.problem_id = problem.id
) row
ORDER BY last_seen DESC NULLS FIRST, id DESC
"""  # noqa: S608 - made of our own names


class OpenProblem(NamedTuple):
    """A problem with the number of its open poisons.

    A tuple, because a page makes a thousand of them.
    """

    problem: int
    topic: int
    open: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenProblems:
    """The problems that failed last, latest first; `total` counts those of all."""

    problems: list[OpenProblem]
    total: int


def open_by_problem(*, topics: Sequence[int] | None, problems: int) -> OpenProblems:
    """Count open poisons of the problems that failed last, and in total.

    Read at most `problems` problems of these topics (None is every topic). The total is
    that of `open_number`.
    """
    ids = None if topics is None else list(topics)
    with connection.cursor() as cursor:
        cursor.execute(_OPEN_BY_PROBLEM, {"topics": ids, "problems": problems})
        (_, _, total), *rows = cursor.fetchall()
    return OpenProblems(problems=[*map(OpenProblem._make, rows)], total=total)
