"""The pages of endpoints: list, detail, form, enable and disable, remove."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from apps.core import clock
from apps.core.errors import Invalid, Refused
from apps.dashboard.decorators import SignedIn, needs, show
from apps.dashboard.domain_error_pages import status_of
from apps.dashboard.forms.endpoints import EndpointForm
from apps.dashboard.forms.fields import field_of, reason_in
from apps.dashboard.forms.name_filter import NamesForm
from apps.dashboard.presentation import api_calls_as_curl
from apps.dashboard.selectors import endpoints
from apps.redelivery.endpoint_settings_dataclass import PRESETS
from apps.redelivery.models import Endpoint
from apps.redelivery.services import endpoints as services
from apps.team.rights import Scope

API = "/api/v1/endpoints"
ADDED = "The endpoint is added: call it at /gateway/{} with a key for gateway:call."
# What pages call the presets.
PRESET_LABELS = {"article": "The article", "async-caller": "Async Caller"}


@require_safe
@needs(Scope.BROKERS_READ)
def index(request: SignedIn) -> HttpResponse:
    filters = NamesForm(request.GET).as_filter
    principal = request.user.principal
    context = {
        "endpoints": endpoints.find(filters, principal, now=clock.now()),
        "filters": filters,
        "may_write": principal.may(Scope.BROKERS_WRITE),
        "curl": api_calls_as_curl.get(request, API),
    }
    live = "endpoints/_endpoints_table.html"
    return show(request, "endpoints/list.html", context, live=live)


@require_safe
@needs(Scope.BROKERS_READ)
def detail(request: SignedIn, endpoint_id: int) -> HttpResponse:
    return _detail(request, endpoint_id)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_WRITE)
def new(request: SignedIn) -> HttpResponse:
    """Show the form of a new endpoint, with a preset's values; a POST adds it.

    The POST redirects to the endpoint's page.
    """
    if request.method != "POST":
        preset = request.GET.get("preset", "")
        return _form(request, EndpointForm.beginning_with(preset), preset=preset)
    form = EndpointForm.read(request.POST)
    try:
        endpoint = form.add(request.user.principal, now=clock.now())
    except (Invalid, Refused) as wrong:
        return _form(request, form, wrong=wrong)
    messages.success(request, ADDED.format(endpoint.name))
    return redirect("endpoint", endpoint.pk)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_WRITE)
def edit(request: SignedIn, endpoint_id: int) -> HttpResponse:
    """Show the form of an endpoint; a POST changes it and redirects to its page."""
    endpoint = endpoints.visible(endpoint_id, request.user.principal)
    if request.method != "POST":
        return _form(request, EndpointForm.of(endpoint), endpoint)
    form = EndpointForm.read(request.POST)
    try:
        form.alter(endpoint, request.user.principal, now=clock.now())
    except (Invalid, Refused) as wrong:
        return _form(request, form, endpoint, wrong=wrong)
    return redirect("endpoint", endpoint_id)


@require_POST
@needs(Scope.BROKERS_WRITE)
def set_enabled(request: SignedIn, endpoint_id: int) -> HttpResponse:
    """Answer the form that enables or disables an endpoint; redirect to its page."""
    endpoint = endpoints.visible(endpoint_id, request.user.principal)
    try:
        services.change_endpoint(
            name=endpoint.name,
            changes={"is_enabled": request.POST.get("enabled") == "1"},
            principal=request.user.principal,
            reason=reason_in(request.POST),
            now=clock.now(),
        )
    except Invalid as wrong:
        return _detail(request, endpoint_id, wrong=wrong)
    return redirect("endpoint", endpoint_id)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_WRITE)
def remove(request: SignedIn, endpoint_id: int) -> HttpResponse:
    """Show the question whether to remove an endpoint; a POST removes it.

    The POST redirects to the list of endpoints.
    """
    endpoint = endpoints.visible(endpoint_id, request.user.principal)
    if request.method != "POST":
        return _remove(request, endpoint)
    try:
        services.remove_endpoint(
            name=endpoint.name,
            principal=request.user.principal,
            reason=reason_in(request.POST),
            now=clock.now(),
        )
    except (Refused, Invalid) as wrong:
        return _remove(request, endpoint, wrong=wrong)
    messages.success(request, f"The endpoint {endpoint.name} is removed.")
    return redirect("endpoints")


def _detail(
    request: SignedIn, endpoint_id: int, *, wrong: Invalid | None = None
) -> HttpResponse:
    """Render the page of an endpoint, with what is wrong with its form."""
    principal = request.user.principal
    page = endpoints.one(endpoint_id, principal, now=clock.now())
    context = {
        "detail": page,
        "row": page.row,
        "endpoint": page.row.endpoint,
        "sections": EndpointForm.of(page.row.endpoint).sections,
        "may_write": principal.may(Scope.BROKERS_WRITE),
        "wrong": wrong,
        "reason": reason_in(request.POST),
        "curl": api_calls_as_curl.get(request, f"{API}/{endpoint_id}"),
    }
    status = status_of(wrong) if wrong else 200
    live = "endpoints/_live_detail.html"
    return show(request, "endpoints/detail.html", context, live=live, status=status)


def _form(
    request: SignedIn,
    form: EndpointForm,
    endpoint: Endpoint | None = None,
    *,
    preset: str = "",
    wrong: Invalid | Refused | None = None,
) -> HttpResponse:
    """Render the form of an endpoint, with what is wrong with it."""
    principal = request.user.principal
    context = {
        "form": form,
        "endpoint": endpoint,
        "preset": preset,
        "presets": [(name, PRESET_LABELS.get(name, name)) for name in PRESETS],
        "topics": endpoints.topics_with_a_broker(principal),
        "endpoint_names": endpoints.names(principal),
        "wrong": wrong,
        "wrong_at": field_of(wrong),
    }
    status = status_of(wrong) if wrong else 200
    return render(request, "endpoints/form.html", context, status=status)


def _remove(
    request: SignedIn, endpoint: Endpoint, *, wrong: Refused | Invalid | None = None
) -> HttpResponse:
    """Render the question whether to remove an endpoint."""
    context = {
        "endpoint": endpoint,
        "has_deliveries": endpoints.has_deliveries(endpoint),
        "reason": reason_in(request.POST),
        "wrong": wrong,
        "wrong_at": field_of(wrong),
        "curl": api_calls_as_curl.delete(request, f"{API}/{endpoint.pk}", {}),
    }
    status = status_of(wrong) if wrong else 200
    return render(request, "endpoints/remove.html", context, status=status)
