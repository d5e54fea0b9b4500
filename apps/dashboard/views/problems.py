"""Problems: the list, and one of them."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from apps.core import clock
from apps.dashboard.decorators import SignedIn, needs, show
from apps.dashboard.list_params import Asked, Origin, ProblemAsked
from apps.dashboard.presentation import curl
from apps.dashboard.selectors import problems
from apps.poison import reading
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


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BODIES_READ)
def reveal_header(request: SignedIn, problem_id: int) -> HttpResponse:
    """Put on record who reads a header; the page then shows it to them for an hour."""
    if request.method == "POST":
        asked, now = ProblemAsked.of(request), clock.now()
        found = problems.one(problem_id, asked, request.user.principal, now=now)
        column = found.differences.column
        if column and column.may_reveal:
            reading.reveal_header(
                problem_id=problem_id,
                name=column.name,
                principal=request.user.principal,
                now=now,
            )
    page = reverse("problem", args=[problem_id])
    return redirect(f"{page}?{request.GET.urlencode()}")
