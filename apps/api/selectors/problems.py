"""Read problems, with the number of their poisons in each state."""

from __future__ import annotations

from apps.api.paging import Page, RowKey, Window
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
    if window.after and window.after.at:
        rows = rows.older_than(seen_at=window.after.at, pk=window.after.pk)
    with search_timeout():
        page = window.page(rows, lambda row: RowKey(at=row.last_seen, pk=row.pk))
        ids = [row.pk for row in page.rows]
        return page, Poison.objects.counted_by_problem(ids)
