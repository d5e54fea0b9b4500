"""Problems: the list, and one of them."""

from __future__ import annotations

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from apps.core import clock
from apps.dashboard import curl
from apps.dashboard.asked import Asked, Origin, ProblemAsked
from apps.dashboard.doors import SignedIn, needs, show
from apps.dashboard.selectors import problems
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
        "origin": Origin.in_list(asked),
        "sorts": [(value, label) for value, (_, label) in problems.SORTS.items()],
        "curl": curl.get(request, "/api/v1/problems", q=str(asked.query)),
    }
    live = "problems/_rows.html"
    return show(request, "problems/list.html", context, live=live, status=asked.status)


@require_safe
@needs(Scope.PROBLEMS_READ)
def detail(request: SignedIn, problem_id: int) -> HttpResponse:
    asked = ProblemAsked.of(request)
    found = problems.one(problem_id, asked, request.user.principal, now=clock.now())
    context = {
        "asked": asked.messages,
        "origin": asked.origin,
        "header": asked.header,
        "problem": found.row.problem,
        "found": found,
        "list": found.messages,
        "total": found.messages.total,
        "curl": curl.get(request, "/api/v1/poisons", q=str(found.messages.query)),
    }
    status, live = asked.messages.status, "problems/_messages.html"
    return show(request, "problems/detail.html", context, live=live, status=status)
