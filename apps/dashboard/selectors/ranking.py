"""The problems that need a person: those with the most open messages now come first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from apps.brokers.models import Topic
from apps.core.hurry import unless_slow
from apps.dashboard.paging import MOST_COUNTED
from apps.dashboard.selectors.beside import Beside
from apps.poison import backlogs
from apps.poison.backlogs import OpenProblem
from apps.team.rights import Principal

# Only the problems that failed last are ranked, so that the page never waits long.
MOST_PROBLEMS = 2_000


def ranked(principal: Principal) -> list[OpenProblem] | None:
    """Rank the problems on a person's topics; None where counting took too long."""
    topics = _topics(principal)
    ask = partial(
        backlogs.most_open,
        topics=topics,
        problems=MOST_PROBLEMS,
        most=MOST_COUNTED + 1,
    )
    return unless_slow(ask, instead=None)


def beside(problem_id: int, principal: Principal) -> Beside:
    """Find the problems before and after one in the ranking.

    One that has no open message any more is followed by the first of the others.
    """
    ids = [each.problem for each in ranked(principal) or ()]
    if problem_id not in ids:
        return Beside(newer=None, older=ids[0] if ids else None)
    at = ids.index(problem_id)
    return Beside(
        newer=ids[at - 1] if at else None,
        older=ids[at + 1] if at + 1 < len(ids) else None,
    )


def _topics(principal: Principal) -> Sequence[int] | None:
    if principal.sees_every_topic:
        return None
    visible = Topic.objects.matching(principal.topics)
    return list(visible.values_list("pk", flat=True))
