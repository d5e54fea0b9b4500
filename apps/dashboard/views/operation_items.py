"""What became of each message of an operation, and another try for some of them."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST, require_safe

from apps.core import clock
from apps.core.errors import Invalid
from apps.dashboard.decorators import SignedIn, needs, show
from apps.dashboard.presentation import api_calls_as_curl
from apps.dashboard.selectors import operation_items
from apps.team.rights import Scope
from apps.triage import operation_enqueueing
from apps.triage.operation_states import LISTED, RETRIED


@require_safe
@needs(Scope.OPERATIONS_READ)
def index(request: SignedIn, operation_id: int) -> HttpResponse:
    """Show the page of an operation's messages or deliveries, of a standing or all."""
    standing = request.GET.get("standing", "")
    if standing and standing not in LISTED:
        raise Invalid("standing", f"give one of {', '.join(LISTED)}, or none")
    page = operation_items.page(
        operation_id,
        request.user.principal,
        standing=standing,
        after=_number(request.GET.get("after", "")),
        now=clock.now(),
    )
    query = f"?standing={standing}" if standing else ""
    context = {
        "items": page,
        "operation": page.operation,
        "curl": api_calls_as_curl.get(
            request, f"/api/v1/operations/{operation_id}/items{query}"
        ),
    }
    live = "operations/_items.html"
    return show(request, "operations/items.html", context, live=live)


@require_POST
@needs(Scope.OPERATIONS_WRITE)
def retry(request: SignedIn, operation_id: int) -> HttpResponse:
    """Answer the form that requeues messages of an operation once more.

    They are its refused, recurred or silent ones. Create the preview of a new
    operation, and redirect to it. Raises Invalid without such a standing.
    """
    standings = [name for name in request.POST.getlist("standing") if name in RETRIED]
    if not standings:
        raise Invalid("standing", f"choose at least one of {', '.join(RETRIED)}")
    preview = operation_enqueueing.preview_retry(
        operation_id=operation_id,
        standings=standings,
        principal=request.user.principal,
        now=clock.now(),
    )
    place = {
        "token": str(preview.token),
        "back": reverse("operation", args=[operation_id]),
    }
    return redirect(f"{reverse('preview')}?{urlencode(place)}")


def _number(text: str) -> int:
    """Parse the number of the operation's item after which a page begins; else -1."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
