"""The audit trail, and whether it is whole."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from apps.audit import verification
from apps.audit.services import Action
from apps.core import clock
from apps.dashboard import curl
from apps.dashboard.doors import SignedIn, needs
from apps.dashboard.forms import TrailForm
from apps.dashboard.paging import Cursor
from apps.dashboard.selectors import checkpoint, trail
from apps.team.rights import Scope


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.AUDIT_READ)
def index(request: SignedIn) -> HttpResponse:
    form = TrailForm(request.GET)
    wanted = form.wanted
    cursor = Cursor.parse(request.GET.get("cursor", ""))
    context = {
        "form": form,
        "wanted": wanted,
        "actions": list(Action),
        "checkpoint": checkpoint.status(now=clock.now()),
        "page": trail.find(wanted, cursor),
        "verdict": verification.verify() if request.method == "POST" else None,
        "curl": curl.get(request, "/api/v1/audit", **wanted.as_query),
    }
    return render(request, "audit/list.html", context, status=form.status)
