"""Problems: the list, and one of them."""

from __future__ import annotations

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from apps.core import clock
from apps.dashboard import curl
from apps.dashboard.asked import Asked
from apps.dashboard.doors import SignedIn, needs, show
from apps.dashboard.selectors import messages, problems
from apps.team.rights import Scope


@require_safe
@needs(Scope.PROBLEMS_READ)
def index(request: SignedIn) -> HttpResponse:
    asked = Asked.of(request, default="is:open")
    found = problems.find(asked, request.user.principal, now=clock.now())
    context = {
        "asked": asked,
        "found": found,
        "total": found.total,
        "sorts": [(value, label) for value, (_, label) in problems.SORTS.items()],
        "curl": curl.get(request, "/api/v1/problems", q=str(asked.query)),
    }
    live = "problems/_rows.html"
    return show(request, "problems/list.html", context, live=live, status=asked.status)


@require_safe
@needs(Scope.PROBLEMS_READ)
def detail(request: SignedIn, problem_id: int) -> HttpResponse:
    principal = request.user.principal
    found = problems.one(problem_id, principal, now=clock.now())
    asked = Asked.of(request)
    within = messages.of_problem(problem_id, asked, principal)
    context = {
        "asked": asked,
        "problem": found.row.problem,
        "found": found,
        "list": within,
        "total": within.total,
        "curl": curl.get(request, "/api/v1/poisons", q=f"problem:{problem_id}"),
    }
    live = "messages/_rows.html"
    return show(request, "problems/detail.html", context, live=live)
