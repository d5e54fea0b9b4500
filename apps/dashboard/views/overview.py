"""The overview page."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST, require_safe

from apps.core import clock
from apps.dashboard import last_visit, onboarding_dismissal
from apps.dashboard.decorators import SignedIn, needs, show
from apps.dashboard.selectors import overview
from apps.team.rights import Scope


@require_safe
@needs(Scope.PROBLEMS_READ)
def index(request: SignedIn) -> HttpResponse:
    now = clock.now()
    # A page that refreshes itself is no visit of a person.
    before = (
        last_visit.previous_visit(request.session)
        if request.htmx
        else last_visit.record_visit(request.session, now=now)
    )
    page = overview.find(before, request.user.principal, now=now)
    context: dict[str, object] = {
        "overview": page,
        # The menu shows the same operations, and would look them up again.
        "running_operations": page.running,
        "before": before,
        "first": onboarding_dismissal.steps_for(request, request.user.principal),
    }
    return show(
        request, "overview/overview.html", context, live="overview/_live_content.html"
    )


@require_POST
@needs(Scope.PROBLEMS_READ)
def dismiss_first_steps(_: SignedIn) -> HttpResponse:
    """Hide onboarding's first steps from this browser; redirect to the home page."""
    return onboarding_dismissal.dismiss(redirect("home"))
