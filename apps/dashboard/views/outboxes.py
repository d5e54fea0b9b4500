"""The pages of outboxes: list, detail, rows, form, pause, remove, decisions on rows."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from apps.core import clock
from apps.core.errors import Invalid, PoisonwebError, Refused, Unavailable
from apps.dashboard.decorators import SignedIn, needs, show
from apps.dashboard.domain_error_pages import status_of
from apps.dashboard.forms.fields import field_of, reason_in
from apps.dashboard.forms.name_filter import NamesForm
from apps.dashboard.forms.outboxes import OutboxForm, RowsForm
from apps.dashboard.presentation import api_calls_as_curl
from apps.dashboard.selectors import outboxes
from apps.outbox import table_inspection
from apps.outbox.models import Outbox
from apps.outbox.outbox_fields import BY_NAME
from apps.outbox.outbox_row_decisions import RowFilter, RowState
from apps.outbox.services import outbox_registration as services
from apps.outbox.services import row_decisions
from apps.team.rights import Scope
from poisonguard.outbox.sweeping.inspection import Finding

API = "/api/v1/outboxes"
DECISIONS = {"send": row_decisions.send_row, "drop": row_decisions.drop_row}
TABLES_CHANGED = (
    "The address or the schema is not the one whose tables you looked at: nothing was"
    " added, and this is wrong with the tables that stand in the form now."
)
DECIDED = {
    "send": "Row {} will be sent within a second.",
    "drop": "Row {} is dropped. It stays in its table.",
}


@require_safe
@needs(Scope.BROKERS_READ)
def index(request: SignedIn) -> HttpResponse:
    filters = NamesForm(request.GET).as_filter
    principal = request.user.principal
    context = {
        "outboxes": outboxes.find(filters, principal, now=clock.now()),
        "filters": filters,
        "may_write": principal.may(Scope.BROKERS_WRITE),
        "curl": api_calls_as_curl.get(request, API),
    }
    live = "outboxes/_outboxes_table.html"
    return show(request, "outboxes/list.html", context, live=live)


@require_safe
@needs(Scope.BROKERS_READ)
def detail(request: SignedIn, outbox_id: int) -> HttpResponse:
    return _detail(request, outbox_id)


@require_safe
@needs(Scope.POISONS_READ)
def rows(request: SignedIn, outbox_id: int) -> HttpResponse:
    """Render the page of an outbox's rows, read from the producer's database.

    The database may be away. A wrong filter is said above the empty list.
    """
    outbox = outboxes.visible(outbox_id, request.user.principal)
    filters, listed, wrong = RowFilter(), outboxes.RowList(rows=[]), None
    try:
        filters = RowsForm(request.GET).as_filter
        listed = outboxes.rows(outbox, filters, request.user.principal)
    except Invalid as invalid:
        wrong = invalid
    context = {
        "outbox": outbox,
        "list": listed,
        "filters": filters,
        "wrong": wrong,
        "states": list(RowState),
        "may_decide": request.user.principal.may(Scope.OPERATIONS_WRITE),
        "curl": api_calls_as_curl.get(
            request, f"{API}/{outbox.pk}/rows", **_params(filters)
        ),
    }
    status = status_of(wrong) if wrong else 200
    return render(request, "outboxes/rows.html", context, status=status)


@require_safe
@needs(Scope.BROKERS_READ)
def inspect(request: SignedIn, outbox_id: int) -> HttpResponse:
    """Show a page with what is wrong with the database tables of an outbox."""
    outbox = outboxes.visible(outbox_id, request.user.principal)
    context = {
        "outbox": outbox,
        "findings": table_inspection.findings(
            url=outbox.url,
            schema=outbox.schema,
            for_manager=request.user.principal.may(Scope.BROKERS_WRITE),
        ),
        "curl": api_calls_as_curl.get(request, f"{API}/{outbox.pk}/findings"),
    }
    return render(request, "outboxes/table_inspection.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_WRITE)
def new(request: SignedIn) -> HttpResponse:
    """Show the form of a new outbox; a POST adds it.

    What is wrong with its tables is shown before it is added all the same; and again
    where the form names other tables by then.
    """
    if request.method != "POST":
        return _form(request, OutboxForm.empty())
    form = OutboxForm.read(request.POST)
    try:
        is_inspected = form.inspected == form.mark(request.user.principal)
        findings = [] if is_inspected else form.findings()
        if findings:
            changed = Refused(TABLES_CHANGED) if form.inspected else None
            return _form(request, form, findings=findings, wrong=changed)
        outbox = form.add(request.user.principal, now=clock.now())
    except (Invalid, Refused, Unavailable) as wrong:
        return _form(request, form, wrong=wrong)
    messages.success(request, "The outbox is added: a sweeper begins within a second.")
    return redirect("outbox", outbox.pk)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_WRITE)
def edit(request: SignedIn, outbox_id: int) -> HttpResponse:
    """Show the form of an outbox; a POST changes it and redirects to its page."""
    outbox = outboxes.visible(outbox_id, request.user.principal)
    if request.method != "POST":
        return _form(request, OutboxForm.of(outbox), outbox)
    form = OutboxForm.read(request.POST)
    try:
        form.alter(outbox, request.user.principal, now=clock.now())
    except (Invalid, Refused, Unavailable) as wrong:
        return _form(request, form, outbox, wrong=wrong)
    return redirect("outbox", outbox_id)


@require_POST
@needs(Scope.BROKERS_WRITE)
def set_paused(request: SignedIn, outbox_id: int) -> HttpResponse:
    """Answer the form that pauses or resumes an outbox's sweeper.

    The form's `paused` says which. Redirects to the outbox's page.
    """
    outbox = outboxes.visible(outbox_id, request.user.principal)
    try:
        services.change_outbox(
            name=outbox.name,
            changes={"is_paused": request.POST.get("paused") == "1"},
            principal=request.user.principal,
            reason=reason_in(request.POST),
            now=clock.now(),
        )
    except Invalid as wrong:
        return _detail(request, outbox_id, wrong=wrong)
    return redirect("outbox", outbox_id)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_WRITE)
def remove(request: SignedIn, outbox_id: int) -> HttpResponse:
    """Show the question whether to remove an outbox; a POST removes it.

    The POST redirects to the list of outboxes.
    """
    outbox = outboxes.visible(outbox_id, request.user.principal)
    if request.method != "POST":
        return _remove(request, outbox)
    try:
        services.remove_outbox(
            name=outbox.name,
            principal=request.user.principal,
            reason=reason_in(request.POST),
            now=clock.now(),
        )
    except Invalid as wrong:
        return _remove(request, outbox, wrong=wrong)
    messages.success(request, f"The outbox {outbox.name} is removed.")
    return redirect("outboxes")


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.OPERATIONS_WRITE)
def send(request: SignedIn, outbox_id: int, row_id: int) -> HttpResponse:
    """Show the question whether to send a quarantined outbox row; a POST allows it.

    The sweeper sends the row then.
    """
    return _decision(request, outbox_id, row_id, "send")


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.OPERATIONS_WRITE)
def drop(request: SignedIn, outbox_id: int, row_id: int) -> HttpResponse:
    """Show the question whether to drop a quarantined outbox row; a POST drops it."""
    return _decision(request, outbox_id, row_id, "drop")


def _decision(request: SignedIn, outbox_id: int, row_id: int, act: str) -> HttpResponse:
    """Show the question whether to send or drop a quarantined outbox row.

    A POST does it and redirects to the outbox's page.
    """
    outbox = outboxes.visible(outbox_id, request.user.principal)
    if request.method != "POST":
        return _render_question(request, outbox, row_id, act)
    try:
        DECISIONS[act](
            outbox=outbox,
            row_id=row_id,
            principal=request.user.principal,
            reason=reason_in(request.POST),
            now=clock.now(),
        )
    except (Refused, Invalid, Unavailable) as wrong:
        return _render_question(request, outbox, row_id, act, wrong=wrong)
    messages.success(request, DECIDED[act].format(row_id))
    return redirect("outbox", outbox_id)


def _detail(
    request: SignedIn, outbox_id: int, *, wrong: Invalid | None = None
) -> HttpResponse:
    """Render the page of an outbox, with what is wrong with its form."""
    principal = request.user.principal
    page = outboxes.one(outbox_id, principal, now=clock.now())
    context = {
        "detail": page,
        "outbox": page.outbox,
        "activity": page.outbox.activity,
        "sections": OutboxForm.of(page.outbox).sections,
        "may_write": principal.may(Scope.BROKERS_WRITE),
        "may_see_rows": principal.may(Scope.POISONS_READ),
        "wrong": wrong,
        "reason": reason_in(request.POST),
        "curl": api_calls_as_curl.get(request, f"{API}/{outbox_id}"),
    }
    status = status_of(wrong) if wrong else 200
    live = "outboxes/_live_detail.html"
    return show(request, "outboxes/detail.html", context, live=live, status=status)


def _form(
    request: SignedIn,
    form: OutboxForm,
    outbox: Outbox | None = None,
    *,
    findings: Sequence[Finding] = (),
    wrong: PoisonwebError | None = None,
) -> HttpResponse:
    """Render the form of an outbox, with what is wrong with it or its tables."""
    field = field_of(wrong)
    context = {
        "form": form,
        "outbox": outbox,
        "findings": findings,
        "mark": form.mark(request.user.principal),
        "brokers": outboxes.broker_names(),
        "wrong": wrong,
        "wrong_at": field,
        "wrong_label": BY_NAME[field].label if field in BY_NAME else field.capitalize(),
    }
    status = status_of(wrong) if wrong else 200
    return render(request, "outboxes/form.html", context, status=status)


def _remove(
    request: SignedIn, outbox: Outbox, *, wrong: Invalid | None = None
) -> HttpResponse:
    """Render the question whether to remove an outbox, and what waits in it."""
    context = {
        "outbox": outbox,
        "activity": outbox.activity,
        "may_see_rows": request.user.principal.may(Scope.POISONS_READ),
        "reason": reason_in(request.POST),
        "wrong": wrong,
        "wrong_at": field_of(wrong),
        "curl": api_calls_as_curl.delete(request, f"{API}/{outbox.pk}", {}),
    }
    status = status_of(wrong) if wrong else 200
    return render(request, "outboxes/remove.html", context, status=status)


def _render_question(
    request: SignedIn,
    outbox: Outbox,
    row_id: int,
    act: str,
    *,
    wrong: PoisonwebError | None = None,
) -> HttpResponse:
    """Render the question whether to send or drop a quarantined outbox row.

    It does neither: `_decision` does. The row is read from the producer's database.
    """
    listed = outboxes.rows(outbox, RowFilter(before=row_id + 1), request.user.principal)
    context = {
        "outbox": outbox,
        "row": next((each for each in listed.rows if each.row_id == row_id), None),
        "row_id": row_id,
        "trouble": listed.trouble,
        "act": act,
        "reason": reason_in(request.POST),
        "wrong": wrong,
        "wrong_at": field_of(wrong),
        "curl": api_calls_as_curl.post(
            request, f"{API}/{outbox.pk}/rows/{row_id}/{act}", {}
        ),
    }
    status = status_of(wrong) if wrong else 200
    return render(
        request, "outboxes/decision_confirmation.html", context, status=status
    )


def _params(filters: RowFilter) -> dict[str, str]:
    params = {
        "state": filters.state.value if filters.state else "",
        "message_id": filters.message_id,
        "topic": filters.topic,
    }
    return {name: value for name, value in params.items() if value}
