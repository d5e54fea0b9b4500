"""Read problems, with the number of their poisons in each state."""

from __future__ import annotations

from apps.api.paging import Page, Window
from apps.core.timeouts import search_timeout
from apps.poison import problem_search
from apps.poison.models import Poison, Problem
from apps.poison.query import Query
from apps.poison.states import DisplayState
from apps.team.rights import Principal

ProblemCounts = dict[int, dict[DisplayState, int]]


def matching(
    query: Query, window: Window, principal: Principal
) -> tuple[Page[Problem], ProblemCounts]:
    """List the problems that have a matching poison, last seen first, with counts."""
    rows = problem_search.matching(query, topics=principal.topics)
    rows = rows.recent_first().select_related("topic")
    with search_timeout():
        page = window.page(rows)
        ids = [row.pk for row in page.rows]
        return page, Poison.objects.counted_by_problem(ids)
