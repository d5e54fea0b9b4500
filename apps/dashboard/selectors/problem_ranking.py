"""Rank problems by their number of open messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from apps.brokers.models import Topic
from apps.core.statement_timeouts import TooSlow, unless_slow
from apps.dashboard.selectors.previous_and_next_row import Neighbours
from apps.poison import poison_counts_by_state
from apps.poison.poison_counts_by_state import OpenProblem
from apps.team.rights import Principal

# Rank those that failed last.
MOST_PROBLEMS = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """Problems with open messages, most first; not `is_whole`: others may have more.

    `open` is the number of open messages, of all problems. `topics` are those with the
    most of them first, and then those that failed last.
    """

    problems: Sequence[OpenProblem]
    topics: Sequence[int]
    open: int
    is_whole: bool

    @property
    def ids(self) -> list[int]:
        return [each.problem for each in self.problems]


def rank_problems(principal: Principal) -> Ranking | TooSlow:
    """Rank the problems of visible topics by open messages, most first; or TooSlow."""
    return unless_slow(partial(_ranking, visible_topic_ids(principal)))


def neighbours(problem_id: int, principal: Principal) -> Neighbours:
    """Return the problems before and after a problem in the overview's ranking.

    For a problem that is no longer ranked, the first of the ranking follows.
    """
    ranking = rank_problems(principal)
    ids = [] if isinstance(ranking, TooSlow) else ranking.ids
    if problem_id not in ids:
        return Neighbours(newer=None, older=ids[0] if ids else None)
    at = ids.index(problem_id)
    return Neighbours(
        newer=ids[at - 1] if at else None,
        older=ids[at + 1] if at + 1 < len(ids) else None,
    )


def _ranking(topics: Sequence[int] | None) -> Ranking:
    """Rank the problems that failed last, and their topics, by open messages."""
    latest = poison_counts_by_state.open_by_problem(
        topics=topics, problems=MOST_PROBLEMS
    )
    numbers = Counter[int]()
    for each in latest.problems:
        numbers[each.topic] += each.open
    return Ranking(
        # Both sorts are stable: among equals, the one that failed last stays first.
        problems=sorted(filter(_is_open, latest.problems), key=lambda each: -each.open),
        topics=[topic for topic, _ in numbers.most_common()],
        open=latest.total,
        is_whole=len(latest.problems) < MOST_PROBLEMS,
    )


def _is_open(problem: OpenProblem) -> bool:
    """Tell whether a problem has open messages."""
    return problem.open > 0


def visible_topic_ids(principal: Principal) -> Sequence[int] | None:
    """List the ids of the topics that a principal sees; None for all."""
    if principal.sees_every_topic:
        return None
    visible = Topic.objects.matching(principal.topics)
    return list(visible.values_list("pk", flat=True))
