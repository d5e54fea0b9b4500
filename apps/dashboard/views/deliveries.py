"""The pages of deliveries: the list, one delivery, its contents, decisions."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.http import HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from apps.core import clock
from apps.core.errors import Invalid
from apps.core.streaming_responses import response_chunks
from apps.dashboard.decorators import SignedIn, needs, show
from apps.dashboard.domain_error_pages import status_of
from apps.dashboard.forms.decision_about_deliveries import DeliveriesDecisionForm
from apps.dashboard.forms.fields import field_of
from apps.dashboard.forms.triage_operation import back_url
from apps.dashboard.keyset_pagination import ListCursor
from apps.dashboard.presentation import api_calls_as_curl
from apps.dashboard.presentation.plurals import counted_noun
from apps.dashboard.selectors import deliveries
from apps.dashboard.selectors.deliveries import DeliveryPage
from apps.redelivery.delivery_filters import PARAMETERS, DeliveryFilter
from apps.redelivery.endpoint_and_delivery_choices import DeliveryState
from apps.redelivery.services import delivery_content_access
from apps.team.rights import Scope
from poisonguard.contract import Cause

API = "/api/v1/deliveries"
# What became of deliveries, by the decision about them.
DECIDED = {
    "retry": "{} due now. Senders try again within a second, unless a breaker is open.",
    "give_up": "Gave up on {}.",
    "restore": "{} restored: its plan begins again.",
}
CAUSES = (Cause.EXHAUSTED, Cause.EXPIRED, Cause.UNKNOWN, Cause.MANUAL)


@require_safe
@needs(Scope.POISONS_READ)
def index(request: SignedIn) -> HttpResponse:
    """Show the list of deliveries; a wrong filter is said above the empty list."""
    params = {name: request.GET.get(name, "").strip() for name in PARAMETERS}
    params = {name: value for name, value in params.items() if value}
    listed, wrong = None, None
    try:
        filters = DeliveryFilter.parse(params)
        cursor = ListCursor.parse_uuid(request.GET.get("cursor", ""))
        listed = deliveries.find(filters, cursor, request.user.principal)
    except Invalid as invalid:
        wrong = invalid
    context: dict[str, object] = {
        "params": params,
        "list": listed,
        "total": listed and listed.total,
        "params_for_all": {"state": DeliveryState.WAITING.value, **params},
        "verbs_for_all": deliveries.verbs_for_all(params, listed),
        "states": list(DeliveryState),
        "causes": CAUSES,
        "wrong": wrong,
        "wrong_at": field_of(wrong),
        "curl": api_calls_as_curl.get(request, API, **params),
    }
    status = status_of(wrong) if wrong else 200
    live = "deliveries/_deliveries_table.html"
    return show(request, "deliveries/list.html", context, live=live, status=status)


@require_safe
@needs(Scope.POISONS_READ)
def detail(request: SignedIn, delivery_id: uuid.UUID) -> HttpResponse:
    return _page(request, deliveries.one(delivery_id, request.user.principal))


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BODIES_READ)
def reveal(request: SignedIn, delivery_id: uuid.UUID) -> HttpResponse:
    """Show a delivery's page with its contents, and record that in the audit trail.

    Only for a POST; a GET redirects to the page without the contents.
    """
    if request.method != "POST":
        return redirect("delivery", delivery_id)  # a reload of the revealed page
    revealed = delivery_content_access.reveal(
        delivery_id=delivery_id, principal=request.user.principal, now=clock.now()
    )
    return _page(request, deliveries.page_of_revealed(revealed))


@require_POST
@needs(Scope.BODIES_READ)
def download(request: SignedIn, delivery_id: uuid.UUID) -> StreamingHttpResponse:
    """Answer with a delivery's body as a file to download; audit the download."""
    delivery, chunks = delivery_content_access.download(
        delivery_id=delivery_id, principal=request.user.principal, now=clock.now()
    )
    response = StreamingHttpResponse(
        response_chunks(request, chunks), content_type="application/octet-stream"
    )
    name = f"delivery-{delivery.pk}.bin"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Content-Length"] = delivery.size
    return response


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.OPERATIONS_WRITE)
def decide(request: SignedIn) -> HttpResponse:
    """Show what a decision on chosen deliveries would do; carry it out once confirmed.

    Then redirect back. A GET redirects to the deliveries.
    """
    if request.method != "POST":
        return redirect("deliveries")  # a reload of the question
    decision = DeliveriesDecisionForm.read(request.POST)
    if "confirm" not in request.POST:
        return _question(request, decision)
    try:
        number = decision.carry_out(request.user.principal, now=clock.now())
    except Invalid as wrong:
        return _question(request, decision, wrong=wrong)
    text = DECIDED[decision.act].format(counted_noun(number, "delivery"))
    messages.success(request, text)
    return redirect(back_url(request, otherwise="deliveries"))


def _question(
    request: SignedIn, decision: DeliveriesDecisionForm, *, wrong: Invalid | None = None
) -> HttpResponse:
    """Render what a decision on deliveries would do, with its form."""
    preview = deliveries.preview(decision.act, decision.ids, request.user.principal)
    body: dict[str, object] = {"ids": [str(pk) for pk in preview.ids]}
    call = f"{API}/{decision.act.replace('_', '-')}"
    context = {
        "decision": decision,
        "preview": preview,
        "back": back_url(request, otherwise="deliveries"),
        "wrong": wrong,
        "wrong_at": field_of(wrong),
        "curl": api_calls_as_curl.post(
            request, call, {**body, "reason": decision.reason}
        ),
    }
    status = status_of(wrong) if wrong else 200
    return render(
        request, "deliveries/decision_confirmation.html", context, status=status
    )


def _page(request: SignedIn, detail: DeliveryPage) -> HttpResponse:
    """Render the page of a delivery."""
    principal = request.user.principal
    context = {
        "detail": detail,
        "delivery": detail.delivery,
        "endpoint": detail.delivery.endpoint,
        "reads_bodies": principal.may(Scope.BODIES_READ),
        "curl": api_calls_as_curl.get(request, f"{API}/{detail.delivery.pk}"),
    }
    return render(request, "deliveries/detail.html", context)
