"""Rank problems by their number of open messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from apps.brokers.models import Topic
from apps.core.timeouts import TooSlow, unless_slow
from apps.dashboard.paging import MOST_COUNTED
from apps.dashboard.selectors.neighbours import Neighbours
from apps.poison import backlogs
from apps.poison.backlogs import OpenProblem
from apps.poison.states import DisplayState
from apps.team.rights import Principal

# Rank the MOST_PROBLEMS that failed last, counting each up to MOST_EACH; recount the
# first MOST_RECOUNTED of the larger ones up to MOST_COUNTED. So ten million open
# messages cost at most one million look-ups in an index.
MOST_PROBLEMS = 1_000
MOST_EACH = 1_000
MOST_RECOUNTED = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """Problems with open messages, most first; not `is_whole`: others may have more."""

    problems: Sequence[OpenProblem]
    is_whole: bool

    @property
    def ids(self) -> list[int]:
        return [each.problem for each in self.problems]

    @property
    def topics(self) -> list[int]:
        """List the topics of these problems, most open messages first."""
        numbers = Counter[int]()
        for each in self.problems:
            numbers[each.topic] += each.open
        return [topic for topic, _ in numbers.most_common()]


def ranked(principal: Principal, *, most_each: int = MOST_EACH) -> Ranking | TooSlow:
    """Rank the problems on a person's topics."""
    return unless_slow(partial(_ranking, _topics(principal), most_each=most_each))


def neighbours(problem_id: int, principal: Principal) -> Neighbours:
    """Return the problems before and after one in the ranking.

    The first of the ranking follows a problem that is no longer in it.
    """
    ranking = ranked(principal)
    ids = [] if isinstance(ranking, TooSlow) else ranking.ids
    if problem_id not in ids:
        return Neighbours(newer=None, older=ids[0] if ids else None)
    at = ids.index(problem_id)
    return Neighbours(
        newer=ids[at - 1] if at else None,
        older=ids[at + 1] if at + 1 < len(ids) else None,
    )


def _ranking(topics: Sequence[int] | None, *, most_each: int) -> Ranking:
    latest = backlogs.open_by_problem(
        topics=topics, problems=MOST_PROBLEMS, most=most_each + 1
    )
    counted = _recounted([each for each in latest if each.open], most_each=most_each)
    return Ranking(
        # The sort is stable: among equals, the one that failed last stays first.
        problems=sorted(counted, key=lambda each: -each.open),
        is_whole=len(latest) < MOST_PROBLEMS,
    )


def _recounted(problems: Sequence[OpenProblem], *, most_each: int) -> list[OpenProblem]:
    """Recount the problems whose first count reached its limit."""
    ids = [each.problem for each in problems if each.open > most_each]
    recounts = backlogs.by_problem(ids[:MOST_RECOUNTED], most=MOST_COUNTED + 1)
    numbers = {
        problem: counts[DisplayState.OPEN] for problem, counts in recounts.items()
    }
    return [
        replace(each, open=numbers.get(each.problem, each.open)) for each in problems
    ]


def _topics(principal: Principal) -> Sequence[int] | None:
    if principal.sees_every_topic:
        return None
    visible = Topic.objects.matching(principal.topics)
    return list(visible.values_list("pk", flat=True))
