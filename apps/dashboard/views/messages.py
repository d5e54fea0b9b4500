"""The pages of messages: the list, one message, its body."""

from __future__ import annotations

from django.http import HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from apps.core import clock
from apps.core.streaming_responses import response_chunks
from apps.dashboard.decorators import SignedIn, needs, show
from apps.dashboard.list_params import ListParams
from apps.dashboard.presentation import api_calls_as_curl
from apps.dashboard.selectors import messages
from apps.dashboard.selectors.messages import MessageDetail
from apps.poison import message_contents
from apps.team.rights import Scope


@require_safe
@needs(Scope.POISONS_READ)
def index(request: SignedIn) -> HttpResponse:
    params = ListParams.of(request)
    message_list = messages.find(params, request.user.principal)
    context = {
        "params": params,
        "list": message_list,
        "total": message_list.total,
        "curl": api_calls_as_curl.get(request, "/api/v1/poisons", q=str(params.query)),
    }
    live = "messages/_messages_table.html"
    return show(request, "messages/list.html", context, live=live, status=params.status)


@require_safe
@needs(Scope.POISONS_READ)
def detail(request: SignedIn, message_id: int) -> HttpResponse:
    message_detail = messages.one(message_id, request.user.principal, now=clock.now())
    return _page(request, message_detail)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BODIES_READ)
def reveal(request: SignedIn, message_id: int) -> HttpResponse:
    """Show a message's page with its contents, and record that in the audit trail.

    Only for a POST; a GET redirects to the page without the contents.
    """
    if request.method != "POST":
        return redirect("message", message_id)  # a reload of the revealed page
    principal, now = request.user.principal, clock.now()
    revealed = message_contents.reveal(
        poison_id=message_id, principal=principal, now=now
    )
    return _page(request, messages.page_of_revealed(revealed, principal, now=now))


@require_POST
@needs(Scope.BODIES_READ)
def download(request: SignedIn, message_id: int) -> StreamingHttpResponse:
    """Answer with a message's body as a file to download; audit the download."""
    poison, chunks = message_contents.download(
        poison_id=message_id, principal=request.user.principal, now=clock.now()
    )
    name = f"message-{poison.pk}.bin"
    response = StreamingHttpResponse(
        response_chunks(request, chunks), content_type="application/octet-stream"
    )
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Content-Length"] = poison.size
    return response


def _page(request: SignedIn, detail: MessageDetail) -> HttpResponse:
    """Render the page of a captured message, with its contents if they are revealed."""
    path = f"/api/v1/poisons/{detail.message.pk}"
    context = {
        "detail": detail,
        "message": detail.message,
        "may_skip": request.user.principal.may(Scope.SKIPS_WRITE),
        "reads_bodies": request.user.principal.may(Scope.BODIES_READ),
        "curl": api_calls_as_curl.get(request, path),
    }
    return render(request, "messages/detail.html", context)
