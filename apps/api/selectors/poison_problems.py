"""Read problems, with the number of their poisons in each state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from apps.api.keyset_pagination import Page, PageWindow
from apps.core.errors import Absent
from apps.core.statement_timeouts import count_timeout, search_timeout
from apps.poison import poison_counts_by_state, problem_search
from apps.poison.models import Problem
from apps.poison.query_language import Query
from apps.poison.states import DisplayState
from apps.team.rights import Principal


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedProblem:
    """A problem with the number of its poisons in each displayed state."""

    problem: Problem
    counts: Mapping[DisplayState, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def matching(
    query: Query, window: PageWindow, principal: Principal
) -> tuple[Page[Problem], list[CountedProblem]]:
    """List the problems that have a matching poison, last seen first, with counts."""
    rows = problem_search.matching(query, topics=principal.topics)
    rows = rows.recent_first().select_related("topic")
    with search_timeout():
        page = window.page(rows)
        return page, _counted(page.rows)


def one(problem_id: int, principal: Principal) -> CountedProblem:
    """Find a problem; raises Absent if the principal sees none of this number."""
    visible = problem_search.visible(topics=principal.topics).select_related("topic")
    problem = visible.filter(pk=problem_id).first()
    if problem is None:
        raise Absent(f"There is no problem {problem_id} here.")
    with count_timeout():
        return _counted([problem])[0]


def _counted(problems: Sequence[Problem]) -> list[CountedProblem]:
    """Count the poisons of each problem by state."""
    counts = poison_counts_by_state.by_problem([problem.pk for problem in problems])
    return [
        CountedProblem(problem=problem, counts=counts[problem.pk].states)
        for problem in problems
    ]
