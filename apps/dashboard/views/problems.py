"""The pages of problems: the list, and one problem."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from apps.core import clock
from apps.dashboard.decorators import SignedIn, needs, show
from apps.dashboard.list_params import ListParams, Origin, ProblemPageParams
from apps.dashboard.presentation import api_calls_as_curl
from apps.dashboard.selectors import problems
from apps.poison import message_contents
from apps.team.rights import Scope


@require_safe
@needs(Scope.PROBLEMS_READ)
def index(request: SignedIn) -> HttpResponse:
    params = ListParams.of(request, default="is:open")
    problem_list = problems.find(params, request.user.principal, now=clock.now())
    context = {
        "params": params,
        "problems": problem_list,
        "total": problem_list.total,
        "origin": Origin.in_list(params),
        "sorts": [(value, label) for value, (_, label) in problems.SORTS.items()],
        "curl": api_calls_as_curl.get(request, "/api/v1/problems", q=str(params.query)),
    }
    live = "problems/_problems_table.html"
    return show(request, "problems/list.html", context, live=live, status=params.status)


@require_safe
@needs(Scope.PROBLEMS_READ)
def detail(request: SignedIn, problem_id: int) -> HttpResponse:
    params = ProblemPageParams.of(request)
    problem_detail = problems.one(
        problem_id, params, request.user.principal, now=clock.now()
    )
    context = {
        "params": params.messages,
        "origin": params.origin,
        "header": params.header,
        "problem": problem_detail.row.problem,
        "detail": problem_detail,
        "list": problem_detail.messages,
        "total": problem_detail.messages.total,
        "curl": api_calls_as_curl.get(
            request, "/api/v1/poisons", q=str(problem_detail.messages.query)
        ),
    }
    status, live = params.messages.status, "problems/_messages_table.html"
    return show(request, "problems/detail.html", context, live=live, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BODIES_READ)
def reveal_header(request: SignedIn, problem_id: int) -> HttpResponse:
    """Reveal a header of a problem's messages, and record that in the audit trail.

    The problem's page then shows it for an hour.
    """
    if request.method == "POST":
        params, now = ProblemPageParams.of(request), clock.now()
        problem_detail = problems.one(
            problem_id, params, request.user.principal, now=now
        )
        column = problem_detail.differences.column
        if column and column.may_reveal:
            message_contents.reveal_header(
                problem_id=problem_id,
                name=column.name,
                principal=request.user.principal,
                now=now,
            )
    page = reverse("problem", args=[problem_id])
    return redirect(f"{page}?{request.GET.urlencode()}")
