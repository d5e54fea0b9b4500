"""The pages of skips: the list, one skip, preview, add and remove."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from apps.core import clock
from apps.core.errors import Invalid, Refused
from apps.dashboard.decorators import SignedIn, needs, show
from apps.dashboard.domain_error_pages import status_of
from apps.dashboard.forms import new_skip as skip_forms
from apps.dashboard.forms import triage_operation
from apps.dashboard.forms.fields import reason_in
from apps.dashboard.forms.new_skip import DraftPreview, SkipDraft, SkipForm
from apps.dashboard.forms.topic_and_skip_filters import SkipsForm
from apps.dashboard.keyset_pagination import ListCursor
from apps.dashboard.presentation import api_calls_as_curl
from apps.dashboard.selectors import skips
from apps.poison import skip_addition_and_removal
from apps.poison.models import Poison
from apps.team.rights import Scope

API = "/api/v1/skips"
MOST_COPIED = 2_000


@require_safe
@needs(Scope.SKIPS_READ)
def index(request: SignedIn) -> HttpResponse:
    principal = request.user.principal
    filters = SkipsForm(request.GET).as_filter
    cursor = ListCursor.parse(request.GET.get("cursor", ""))
    context = {
        "skips": skips.find(filters, cursor, principal, now=clock.now()),
        "filters": filters,
        "may_skip": principal.may(Scope.SKIPS_WRITE),
        "curl": api_calls_as_curl.get(request, API, topic=filters.topic),
    }
    return show(request, "skips/list.html", context, live="skips/_skips_table.html")


@require_safe
@needs(Scope.SKIPS_READ)
def detail(request: SignedIn, skip_id: int) -> HttpResponse:
    return _detail(request, skip_id)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.SKIPS_WRITE)
def new(request: SignedIn) -> HttpResponse:
    """Show the form of a new skip, with its preview; a POST may add the skip.

    It adds the skip if the preview is still what the person saw, and redirects to its
    page.
    """
    principal = request.user.principal
    data = request.POST if request.method == "POST" else request.GET
    message = skip_forms.message_of(data, principal)
    form, preview = SkipForm(data, message), None
    try:
        if request.method == "POST" or skip_forms.lacks_only_a_reason(form, message):
            preview = skip_forms.preview(skip_forms.draft(form, message, principal))
        if preview and request.POST.get("act") == "add":
            skip = skip_forms.add(form, preview, principal, now=clock.now())
            return redirect("skip", skip.pk)
    except (Invalid, Refused) as wrong:
        return _new(request, form, message, preview, wrong=wrong)
    return _new(request, form, message, preview)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.SKIPS_WRITE)
def remove(request: SignedIn, skip_id: int) -> HttpResponse:
    """Answer the form that ends a skip, with a reason; redirect to the skips.

    Or redirect back where the form says so; show what is wrong on the skip's page
    otherwise. A GET redirects to that page.
    """
    if request.method != "POST":
        return redirect("skip", skip_id)  # a reload of the page of a refusal
    principal, now = request.user.principal, clock.now()
    reason = reason_in(request.POST)
    try:
        skips.one(skip_id, principal, now=now)
        skip_forms.check_reason(reason)
        skip_addition_and_removal.remove(
            skip_id=skip_id, reason=reason, principal=principal, now=now
        )
    except Invalid as wrong:
        return _detail(request, skip_id, wrong=wrong)
    return redirect(
        triage_operation.back_url(request) if "back" in request.POST else "skips"
    )


def _new(
    request: SignedIn,
    form: SkipForm,
    message: Poison | None,
    preview: DraftPreview | None,
    *,
    wrong: Invalid | Refused | None = None,
) -> HttpResponse:
    """Render the form of a new skip, with its preview or what is wrong."""
    principal = request.user.principal
    context = {
        "form": form,
        "message": message,
        "preview": preview,
        "mark": preview.mark(principal) if preview else "",
        "wrong": wrong,
        "wrong_at": skip_forms.field_of(wrong),
        "choices": skip_forms.choices(message),
        "lifetimes": [
            (name, label) for name, (label, _) in skip_forms.LIFETIMES.items()
        ],
        "topics": skips.topics(principal),
        "headers": skip_forms.header_names(message) if message else [],
        "curl": _curl(request, preview.draft) if preview else "",
    }
    status = status_of(wrong) if wrong else 200
    return render(request, "skips/new.html", context, status=status)


def _curl(request: SignedIn, draft: SkipDraft) -> str:
    """Return the API call, as curl, that adds a skip; "" if its value is too long."""
    # A bookmark may be too long to copy.
    if len(draft.matcher.value) > MOST_COPIED:
        return ""
    return api_calls_as_curl.post(request, API, draft.api_body)


def _detail(
    request: SignedIn, skip_id: int, *, wrong: Invalid | None = None
) -> HttpResponse:
    """Render the page of a skip, with what is wrong with its removal."""
    principal = request.user.principal
    context = {
        "detail": skips.one(skip_id, principal, now=clock.now()),
        "may_skip": principal.may(Scope.SKIPS_WRITE),
        "wrong": wrong,
        "reason": reason_in(request.POST),
        "curl": api_calls_as_curl.delete(request, f"{API}/{skip_id}"),
    }
    status = status_of(wrong) if wrong else 200
    return render(request, "skips/detail.html", context, status=status)
