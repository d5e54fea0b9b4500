"""The pages of operations: preview, confirm, progress, undo, and the list."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpResponse
from django.shortcuts import redirect, render
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
from apps.dashboard import undo_offer
from apps.dashboard.decorators import SignedIn, needs, show
from apps.dashboard.forms import triage_operation
from apps.dashboard.forms.fields import field_of
from apps.dashboard.forms.operation_control import RAMP_FIELDS, shown_limits
from apps.dashboard.forms.triage_operation import DecisionForm
from apps.dashboard.keyset_pagination import ListCursor
from apps.dashboard.presentation import api_calls_as_curl
from apps.dashboard.selectors import (
    operation_previews,
    operation_progress,
    triage_operations,
)
from apps.dashboard.selectors.operation_previews import PreviewDetail
from apps.team.rights import Scope
from apps.triage import operation_enqueueing
from apps.triage.errors import NotTaken, Stale
from apps.triage.models import Operation
from apps.triage.operation_states import OperationGroup, Verb
from apps.triage.services.selection_requests import Route, SendLimits

TABS = (
    ("", "All"),
    (OperationGroup.RUNNING, "Running"),
    (OperationGroup.NEEDS_YOU, "Needs you"),
    (OperationGroup.DONE, "Done"),
)


@require_safe
@needs(Scope.OPERATIONS_READ)
def index(request: SignedIn) -> HttpResponse:
    cursor = ListCursor.parse(request.GET.get("cursor", ""))
    name = request.GET.get("show", "")
    group = OperationGroup(name) if name in set(OperationGroup) else None
    text = request.GET.get("q", "")
    listing = triage_operations.find(
        cursor, request.user.principal, group=group, text=text
    )
    context = {
        "operations": listing,
        "tabs": TABS,
        "tab": group or "",
        "text": text,
        "curl": api_calls_as_curl.get(request, "/api/v1/operations", show=group or ""),
    }
    return show(
        request,
        "operations/list.html",
        context,
        live="operations/_operations_table.html",
    )


# A preview from a browser's cache would look as if it could still be confirmed.
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.OPERATIONS_WRITE)
def preview(request: SignedIn) -> HttpResponse:
    """Show the page of an operation's preview.

    A POST creates a preview of the selected rows, and redirects to it. A preview that
    was confirmed redirects to the operation's page.
    """
    principal, now = request.user.principal, clock.now()
    if request.method == "POST":
        selection_request = triage_operation.parse_list(request.POST)
        operation = operation_enqueueing.preview(
            selection=selection_request, principal=principal, now=now
        )
        return _to_preview(request, operation)
    detail = operation_previews.preview(
        request.GET.get("token", ""), principal, now=now
    )
    if detail.operation.confirmed_at:
        return redirect("operation", detail.operation.pk)
    return _preview(request, detail)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.OPERATIONS_WRITE)
def confirm(request: SignedIn) -> HttpResponse:
    """Answer the form that confirms an operation's preview, or previews it again.

    Redirect to the operation's page or the new preview; show the preview with what is
    wrong otherwise. A GET redirects to the messages.
    """
    if request.method != "POST":
        return redirect("messages")  # a reload of the page of a refusal
    principal, now = request.user.principal, clock.now()
    detail = operation_previews.preview(
        request.POST.get("token", ""), principal, now=now
    )
    try:
        form = DecisionForm.read(request.POST)
        if form.cleaned_data["act"] == "look":
            return _look_again(request, detail, form)
        triage_operation.check_typed(detail, form.cleaned_data["typed"])
        # Only the form of a requeue has fields for a route.
        is_requeue = detail.operation.verb == Verb.REDRIVE
        done = operation_enqueueing.confirm(
            token=detail.operation.token,
            reason=form.cleaned_data["reason"],
            principal=principal,
            now=now,
            route=form.route if is_requeue else None,
            limits=_limits(detail.operation, form),
        )
    except Invalid as wrong:
        return _preview(request, detail, wrong=wrong, status=422)
    except (NotTaken, Stale) as changed:
        return _changed(request, detail, changed)
    if done.verb == Verb.DROP:
        undo_offer.remember(request.session, done.pk)
    return redirect("operation", done.pk)


@require_safe
@needs(Scope.OPERATIONS_READ)
def detail(request: SignedIn, operation_id: int) -> HttpResponse:
    """Show the page of an operation, with its progress."""
    return operation_page(request, operation_id)


def operation_page(
    request: SignedIn, operation_id: int, *, wrong_rate: Invalid | None = None
) -> HttpResponse:
    """Render the page of an operation, and what is wrong with the posted rate."""
    now = clock.now()
    progress = operation_progress.progress(
        operation_id, request.user.principal, now=now
    )
    context = {
        "progress": progress,
        "operation": progress.operation,
        "wrong_rate": wrong_rate,
        "posted_rate": request.POST.get("rate", ""),
        "curl": api_calls_as_curl.get(request, f"/api/v1/operations/{operation_id}"),
    }
    live = "operations/_live_progress.html"
    status = 422 if wrong_rate else 200
    return show(request, "operations/detail.html", context, live=live, status=status)


@require_POST
@needs(Scope.OPERATIONS_WRITE)
def undo(request: SignedIn, operation_id: int) -> HttpResponse:
    """Answer the form that undoes a drop by a new operation; redirect to its page."""
    undoing = operation_enqueueing.undo(
        operation_id=operation_id, principal=request.user.principal, now=clock.now()
    )
    return redirect("operation", undoing.pk)


@require_POST
@needs(Scope.OPERATIONS_WRITE)
def dismiss_undo(request: SignedIn, operation_id: int) -> HttpResponse:
    """Hide the notice that offers to undo a drop, and redirect back.

    An HTMX request gets the empty notice. The drop can still be undone.
    """
    undo_offer.forget(request.session, operation_id)
    if request.htmx:
        return render(request, "parts/undo_offer.html")
    return redirect(triage_operation.back_url(request))


def _limits(operation: Operation, form: DecisionForm) -> SendLimits | None:
    """Return the rate and ramp of an operation's submitted form as its send limits.

    Of an operation on deliveries only the rate, and None for one without a rate.
    """
    if operation.verb == Verb.REDRIVE:
        return form.limits(operation)
    if operation.may_have_a_rate and not operation.is_about_poisons:
        return SendLimits(rate=form.cleaned_data["rate"])
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviousPreview:
    """The previous preview; `confirmed` is its operation if it was confirmed."""

    confirmed: Operation | None


def _look_again(
    request: SignedIn, detail: PreviewDetail, form: DecisionForm
) -> HttpResponse:
    """Preview an operation's selection again, by the submitted route and reason.

    Redirects to the new preview.
    """
    new_preview = operation_enqueueing.preview_again(
        operation=detail.operation,
        route=form.route,
        limits=form.limits(detail.operation),
        reason=form.cleaned_data["reason"],
        principal=request.user.principal,
        now=clock.now(),
    )
    return _to_preview(request, new_preview or detail.operation)


def _to_preview(request: SignedIn, operation: Operation) -> HttpResponse:
    """Redirect to the page of an operation's preview."""
    place = {"token": str(operation.token), "back": triage_operation.back_url(request)}
    return redirect(f"{reverse('preview')}?{urlencode(place)}")


def _changed(
    request: SignedIn, detail: PreviewDetail, changed: NotTaken | Stale
) -> HttpResponse:
    """Render an operation's new preview and why the old one is void.

    Raises the `Stale` error where there is no new preview.
    """
    if isinstance(changed, NotTaken):
        return _preview(request, detail, changed=str(changed), status=409)
    if changed.new_preview is None:
        raise changed
    principal, now = request.user.principal, clock.now()
    new_preview = operation_previews.preview_detail(
        changed.new_preview, principal, now=now
    )
    confirmed = Operation.objects.confirmed().filter(pk=detail.operation.pk).first()
    before = PreviousPreview(confirmed=confirmed)
    return _preview(
        request, new_preview, changed=str(changed), before=before, status=409
    )


def _posted_route(request: SignedIn) -> Route:
    """Return the submitted route of a requeue, valid or not, to show it again.

    It has the target topic, and whether messages go in order.
    """
    target = request.POST.get("target_topic") or None
    return Route(target_topic=target, ordered="ordered" in request.POST)


def _preview(
    request: SignedIn,
    detail: PreviewDetail,
    *,
    wrong: Invalid | None = None,
    changed: str = "",
    before: PreviousPreview | None = None,
    status: int = 200,
) -> HttpResponse:
    """Render the page of an operation's preview.

    `changed` says why another one was void. `before` is the submitted preview if this
    is another one.
    """
    # The ramp names its members as the API does.
    wrong_at = field_of(wrong).removeprefix("ramp/")
    context = {
        "preview": detail,
        "operation": detail.operation,
        "summary": detail.summary,
        "wrong": wrong,
        "wrong_in_ramp": wrong_at if wrong_at in RAMP_FIELDS else "",
        "changed": changed,
        "before": before,
        "reason": request.POST.get("reason")
        or request.GET.get("reason")  # typed before a session ended
        or detail.operation.reason,
        "route": _posted_route(request) if wrong else Route.of(detail.operation),
        "limits": shown_limits(request.POST if wrong else None, detail.operation),
        "back": triage_operation.back_url(request),
        "curl": api_calls_as_curl.post(
            request, "/api/v1/operations/preview", detail.api_body
        ),
    }
    live = "operations/_live_preview.html"
    return show(request, "operations/preview.html", context, live=live, status=status)
