"""Problems with the number of their poisons in each state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count

from apps.api.paging import Page, Place, Window
from apps.api.patience import patience
from apps.poison.models import Poison, Problem
from apps.poison.query import Query
from apps.poison.states import SHOWN, Shown, State
from apps.team.rights import Principal


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemsSeen:
    page: Page[Problem]
    counts: dict[int, dict[Shown, int]]


def matching(query: Query, window: Window, principal: Principal) -> ProblemsSeen:
    """List the problems that have a poison which matches, last seen first."""
    poisons = Poison.objects.on_topics(principal.topics).matching(query)
    rows = Problem.objects.with_poisons(poisons).recent_first().select_related("topic")
    if window.after and window.after.at:
        rows = rows.older_than(seen_at=window.after.at, pk=window.after.pk)
    with patience():
        page = window.cut(rows, lambda row: Place(at=row.last_seen, pk=row.pk))
        return ProblemsSeen(page=page, counts=_counts(page.rows))


def _counts(problems: Sequence[Problem]) -> dict[int, dict[Shown, int]]:
    counts = {problem.pk: dict.fromkeys(Shown, 0) for problem in problems}
    by_state = Poison.objects.filter(problem__in=problems).order_by()
    found = by_state.values_list("problem", "state").annotate(number=Count("pk"))
    for problem, state, number in found:
        counts[problem][SHOWN[State(state)]] += number
    return counts
