"""The buttons of an operation: pause, resume, cancel, its rate, and acknowledge."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from apps.core import clock
from apps.core.errors import Invalid
from apps.dashboard.decorators import SignedIn, needs
from apps.dashboard.forms.operation_control import (
    AcknowledgementForm,
    ControlForm,
    RateForm,
)
from apps.dashboard.presentation.plurals import counted_noun
from apps.dashboard.views.triage_operations import operation_page
from apps.team.rights import Scope
from apps.triage import operation_enqueueing
from apps.triage.operation_states import OperationGroup
from apps.triage.services import acknowledgement, control


@require_POST
@needs(Scope.OPERATIONS_WRITE)
def change_state(request: SignedIn, operation_id: int) -> HttpResponse:
    """Answer the form that pauses, resumes or cancels an operation.

    Redirects to the operation's page.
    """
    form = ControlForm.read(request.POST)
    operation_enqueueing.change_state(
        form.step,
        operation_id=operation_id,
        reason=form.cleaned_data["reason"],
        principal=request.user.principal,
        now=clock.now(),
    )
    return redirect("operation", operation_id)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.OPERATIONS_WRITE)
def set_rate(request: SignedIn, operation_id: int) -> HttpResponse:
    """Answer the form that sets how many messages a second an operation sends.

    Redirects to the operation's page, or shows it with what is wrong.
    """
    if request.method != "POST":
        return redirect("operation", operation_id)  # a reload of the page of a refusal
    try:
        form = RateForm.read(request.POST)
    except Invalid as wrong:
        return operation_page(request, operation_id, wrong_rate=wrong)
    control.set_rate(
        operation_id=operation_id,
        rate=form.cleaned_data["rate"],
        principal=request.user.principal,
        now=clock.now(),
    )
    return redirect("operation", operation_id)


@require_POST
@needs(Scope.OPERATIONS_WRITE)
def acknowledge(request: SignedIn, operation_id: int) -> HttpResponse:
    """Answer the form that acknowledges what went wrong in an operation.

    Redirects to the operation's page.
    """
    acknowledgement.acknowledge(
        operation_id=operation_id,
        reason="",
        principal=request.user.principal,
        now=clock.now(),
    )
    return redirect("operation", operation_id)


@require_POST
@needs(Scope.OPERATIONS_WRITE)
def acknowledge_all(request: SignedIn) -> HttpResponse:
    """Answer the form that acknowledges the listed operations; redirect to the list."""
    form = AcknowledgementForm.read(request.POST)
    number = acknowledgement.acknowledge_all(
        operation_ids=form.cleaned_data["ids"],
        reason="",
        principal=request.user.principal,
        now=clock.now(),
    )
    messages.success(request, f"{counted_noun(number, 'operation')} acknowledged.")
    return redirect(f"{reverse('operations')}?show={OperationGroup.NEEDS_YOU}")
