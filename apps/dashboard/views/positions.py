"""How far consumers have read."""

from __future__ import annotations

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from apps.core import clock
from apps.dashboard.doors import SignedIn, needs, show
from apps.dashboard.selectors import positions
from apps.team.rights import Scope


@require_safe
@needs(Scope.POSITIONS_READ)
def index(request: SignedIn) -> HttpResponse:
    found = positions.find(request.user.principal, now=clock.now())
    live = "positions/_rows.html"
    return show(request, "positions/list.html", {"found": found}, live=live)
