"""Decisions: look at what one would do, confirm it, watch it, undo it; all of them."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.cache import never_cache
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from apps.core import clock
from apps.core.errors import Invalid
from apps.dashboard.decorators import SignedIn, needs, show
from apps.dashboard.forms import selection
from apps.dashboard.forms.selection import DecisionForm
from apps.dashboard.paging import Cursor
from apps.dashboard.presentation import curl
from apps.dashboard.selectors import operations
from apps.dashboard.selectors.operations import PreviewDetail
from apps.team.rights import Scope
from apps.triage import dispatch
from apps.triage.errors import NotTaken, Stale
from apps.triage.models import Operation
from apps.triage.services.selection import Route


@require_safe
@needs(Scope.OPERATIONS_READ)
def index(request: SignedIn) -> HttpResponse:
    cursor = Cursor.parse(request.GET.get("cursor", ""))
    context = {
        "found": operations.find(cursor, request.user.principal),
        "curl": curl.get(request, "/api/v1/operations"),
    }
    return show(request, "operations/list.html", context, live="operations/_rows.html")


# Shown again from a cache, a preview would look as if it could still be confirmed.
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.OPERATIONS_WRITE)
def preview(request: SignedIn) -> HttpResponse:
    principal, now = request.user.principal, clock.now()
    if request.method == "POST":
        ask = selection.of_list(request.POST)
        made = dispatch.preview(ask=ask, principal=principal, now=now)
        return _to_preview(request, made)
    found = operations.preview(request.GET.get("token", ""), principal, now=now)
    if found.operation.confirmed_at:
        return redirect("operation", found.operation.pk)
    return _preview(request, found)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.OPERATIONS_WRITE)
def confirm(request: SignedIn) -> HttpResponse:
    """Carry out a preview, or preview its selection again as the form says."""
    if request.method != "POST":
        return redirect("messages")  # the page of a refusal was reloaded
    principal, now = request.user.principal, clock.now()
    found = operations.preview(request.POST.get("token", ""), principal, now=now)
    try:
        form = DecisionForm.read(request.POST)
        if form.cleaned_data["act"] == "look":
            return _look_again(request, found, form)
        selection.check_typed(found, form.cleaned_data["typed"])
        done = dispatch.confirm(
            token=found.operation.token,
            reason=form.cleaned_data["reason"],
            principal=principal,
            now=now,
            route=form.route,
        )
    except Invalid as wrong:
        return _preview(request, found, wrong=wrong, status=422)
    except (NotTaken, Stale) as changed:
        return _changed(request, found, changed)
    return redirect("operation", done.pk)


@require_safe
@needs(Scope.OPERATIONS_READ)
def detail(request: SignedIn, operation_id: int) -> HttpResponse:
    now = clock.now()
    found = operations.progress(operation_id, request.user.principal, now=now)
    context = {
        "found": found,
        "operation": found.operation,
        "curl": curl.get(request, f"/api/v1/operations/{operation_id}"),
    }
    live = "operations/_progress.html"
    return show(request, "operations/detail.html", context, live=live)


@require_POST
@needs(Scope.OPERATIONS_WRITE)
def undo(request: SignedIn, operation_id: int) -> HttpResponse:
    undoing = dispatch.undo(
        operation_id=operation_id, principal=request.user.principal, now=clock.now()
    )
    return redirect("operation", undoing.pk)


@dataclass(frozen=True, kw_only=True, slots=True)
class Before:
    """The preview that another one stands for; `confirmed` is what it has become."""

    confirmed: Operation | None


def _look_again(
    request: SignedIn, found: PreviewDetail, form: DecisionForm
) -> HttpResponse:
    fresh = dispatch.preview_again(
        operation=found.operation,
        route=form.route,
        reason=form.cleaned_data["reason"],
        principal=request.user.principal,
        now=clock.now(),
    )
    return _to_preview(request, fresh or found.operation)


def _to_preview(request: SignedIn, operation: Operation) -> HttpResponse:
    place = {"token": str(operation.token), "back": selection.back(request)}
    return redirect(f"{reverse('preview')}?{urlencode(place)}")


def _changed(
    request: SignedIn, found: PreviewDetail, changed: NotTaken | Stale
) -> HttpResponse:
    """Show how things stand by now; raises what it was told where nothing can be."""
    if isinstance(changed, NotTaken):
        return _preview(request, found, changed=str(changed), status=409)
    if changed.new_preview is None:
        raise changed
    principal, now = request.user.principal, clock.now()
    fresh = operations.previewed(changed.new_preview, principal, now=now)
    confirmed = Operation.objects.confirmed().filter(pk=found.operation.pk).first()
    before = Before(confirmed=confirmed)
    return _preview(request, fresh, changed=str(changed), before=before, status=409)


def _posted_route(request: SignedIn) -> Route:
    """Give back what was chosen, right or wrong, to be shown beside what is wrong."""
    target = request.POST.get("target_topic") or None
    return Route(target_topic=target, ordered="ordered" in request.POST)


def _preview(
    request: SignedIn,
    found: PreviewDetail,
    *,
    wrong: Invalid | None = None,
    changed: str = "",
    before: Before | None = None,
    status: int = 200,
) -> HttpResponse:
    """Show a preview; `changed` says what kept one from being confirmed.

    `before` is set where that was another one than this.
    """
    context = {
        "found": found,
        "operation": found.operation,
        "seen": found.seen,
        "wrong": wrong,
        "changed": changed,
        "before": before,
        "reason": request.POST.get("reason")
        or request.GET.get("reason")  # typed before a session ended
        or found.operation.reason,
        "route": _posted_route(request) if wrong else Route.of(found.operation),
        "back": selection.back(request),
        "curl": curl.post(request, "/api/v1/operations/preview", found.as_asked),
    }
    live = "operations/_preview.html"
    return show(request, "operations/preview.html", context, live=live, status=status)
