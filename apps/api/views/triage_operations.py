"""Confirm, follow and undo an operation."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import ClassVar

from django.urls import reverse
from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.idempotency import idempotent
from apps.api.keyset_pagination import PageWindow
from apps.api.openapi import IDEMPOTENCY_KEY, PAGING, REFUSED_KEY, describe_call
from apps.api.selectors import triage_operations
from apps.api.serializers import operation_previews
from apps.api.serializers import triage_operations as serializers
from apps.api.views.base import View, list_response
from apps.api.views.operation_previews import preview_response
from apps.core import clock
from apps.team.rights import Scope
from apps.triage import operation_enqueueing
from apps.triage.models import Operation as Row
from apps.triage.services import control
from apps.triage.services.acknowledgement import acknowledge
from apps.triage.services.control import ControlStep
from apps.triage.services.preview_summaries import summarize

CONTROL_REFUSALS = (HTTPStatus.NOT_FOUND, *REFUSED_KEY)


class Operations(View):
    scopes: ClassVar = {
        "GET": Scope.OPERATIONS_READ,
        "POST": Scope.OPERATIONS_WRITE,
    }

    @describe_call(
        "listOperations",
        "List what was decided, newest first",
        answer=serializers.Operations,
        parameters=[serializers.OperationsQuery, *PAGING],
        refusals=[HTTPStatus.BAD_REQUEST],
    )
    def get(self, request: Request) -> Response:
        """Lists operations. A key for some topics sees those under its own patterns."""
        query = serializers.OperationsQuery.parse_query(request.query_params)
        window = PageWindow.parse(request, name="operations")
        page = triage_operations.recent(window, self.principal, **query)
        return list_response(page, serializers.OperationRow(page.rows, many=True).data)

    @describe_call(
        "confirmOperation",
        "Carry out what a preview showed",
        request=serializers.Decision,
        answer=serializers.Accepted,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Confirms a preview; a token used or expired is a 409 with a new preview."""
        operation = operation_enqueueing.confirm(
            **serializers.Decision.parse(request.data),
            principal=self.principal,
            now=clock.now(),
        )
        return _accepted(operation)


class Operation(View):
    scopes: ClassVar = {"GET": Scope.OPERATIONS_READ}

    @describe_call(
        "readOperation",
        "Follow an operation: its counts always add up to its total",
        answer=serializers.OperationDetail,
        refusals=[HTTPStatus.NOT_FOUND],
    )
    def get(self, _: Request, operation_id: int) -> Response:
        detail = triage_operations.one(operation_id, self.principal, now=clock.now())
        return Response(serializers.OperationDetail(detail).data)


class OperationItems(View):
    scopes: ClassVar = {"GET": Scope.OPERATIONS_READ}

    @describe_call(
        "listOperationItems",
        "Read what became of each item of an operation, in its order",
        answer=serializers.OperationItems,
        parameters=[serializers.ItemsParams],
        refusals=[HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def get(self, request: Request, operation_id: int) -> Response:
        """Lists an operation's items, but none of topics that the key may not see."""
        params = serializers.ItemsParams.parse_query(request.query_params)
        page = triage_operations.items(
            operation_id, self.principal, **params, now=clock.now()
        )
        return Response(serializers.OperationItems(page).data)


_described_control = partial(
    describe_call,
    request=serializers.Control,
    answer=serializers.OperationRow,
    parameters=[IDEMPOTENCY_KEY],
    refusals=CONTROL_REFUSALS,
)


class _Control(View):
    """A POST that changes the state of an operation."""

    scopes: ClassVar = {"POST": Scope.OPERATIONS_WRITE}

    def change(self, step: ControlStep, operation_id: int, *, reason: str) -> Response:
        """Change an operation's state; answer the operation as it is now."""
        operation = operation_enqueueing.change_state(
            step,
            operation_id=operation_id,
            reason=reason,
            principal=self.principal,
            now=clock.now(),
        )
        return Response(serializers.OperationRow(operation).data)


class OperationPause(_Control):
    @_described_control(
        "pauseOperation", "Have it send and decide nothing more until it is resumed"
    )
    @idempotent
    def post(self, request: Request, operation_id: int) -> Response:
        """Pauses an operation; what it holds stays held: it may still be sent.

        Obeyed within a second.
        """
        options = serializers.Control.parse(request.data)
        return self.change(control.PAUSE, operation_id, **options)


class OperationResume(_Control):
    @_described_control(
        "resumeOperation",
        "Have a paused operation go on",
        request=serializers.ResumeOptions,
    )
    @idempotent
    def post(self, request: Request, operation_id: int) -> Response:
        """Resumes an operation; a ramp that paused it begins again with its first step.

        Only what is sent from then on counts for the ramp.
        """
        options = serializers.ResumeOptions.parse(request.data)
        without_ramp = options.pop("without_ramp")
        step = control.RESUME_WITHOUT_RAMP if without_ramp else control.RESUME
        return self.change(step, operation_id, **options)


class OperationCancel(_Control):
    @_described_control(
        "cancelOperation", "End it: what was never handed to a broker is open again"
    )
    @idempotent
    def post(self, request: Request, operation_id: int) -> Response:
        """Cancels an operation.

        What may have been sent is `unknown`, and silent after 10 minutes.
        """
        options = serializers.Control.parse(request.data)
        return self.change(control.CANCEL, operation_id, **options)


class OperationRate(View):
    scopes: ClassVar = {"POST": Scope.OPERATIONS_WRITE}

    @describe_call(
        "setOperationRate",
        "Set how many messages or deliveries a second it acts on at most",
        request=serializers.RateChange,
        answer=serializers.OperationRow,
        parameters=[IDEMPOTENCY_KEY],
        refusals=CONTROL_REFUSALS,
    )
    @idempotent
    def post(self, request: Request, operation_id: int) -> Response:
        operation = control.set_rate(
            operation_id=operation_id,
            **serializers.RateChange.parse(request.data),
            principal=self.principal,
            now=clock.now(),
        )
        return Response(serializers.OperationRow(operation).data)


class OperationAcknowledge(View):
    scopes: ClassVar = {"POST": Scope.OPERATIONS_WRITE}

    @_described_control(
        "acknowledgeOperation",
        "Take it out of those that need a person, until more of it is in trouble",
    )
    @idempotent
    def post(self, request: Request, operation_id: int) -> Response:
        """Acknowledges what was refused, came back or is unknown after an operation."""
        operation = acknowledge(
            operation_id=operation_id,
            **serializers.Control.parse(request.data),
            principal=self.principal,
            now=clock.now(),
        )
        return Response(serializers.OperationRow(operation).data)


class RetryFailed(View):
    scopes: ClassVar = {"POST": Scope.OPERATIONS_WRITE}

    @describe_call(
        "retryOperation",
        "Preview a requeue of exactly those that were refused, came back or are silent",
        request=serializers.Retry,
        answer=operation_previews.Preview,
        refusals=[
            HTTPStatus.NOT_FOUND,
            HTTPStatus.CONFLICT,
            HTTPStatus.UNPROCESSABLE_ENTITY,
        ],
    )
    def post(self, request: Request, operation_id: int) -> Response:
        """Previews an operation's retry; changes nothing: confirm its token to send."""
        now = clock.now()
        operation = operation_enqueueing.preview_retry(
            operation_id=operation_id,
            **serializers.Retry.parse(request.data),
            principal=self.principal,
            now=now,
        )
        summary = summarize(operation=operation)
        return preview_response(summary, self.principal, now=now)


class Undo(View):
    scopes: ClassVar = {"POST": Scope.OPERATIONS_WRITE}

    @describe_call(
        "undoOperation",
        "Restore what a drop dropped, for 30 days after its end, as a new operation",
        answer=serializers.Accepted,
        parameters=[IDEMPOTENCY_KEY],
        refusals=[HTTPStatus.NOT_FOUND, *REFUSED_KEY],
    )
    @idempotent
    def post(self, _: Request, operation_id: int) -> Response:
        operation = operation_enqueueing.undo(
            operation_id=operation_id, principal=self.principal, now=clock.now()
        )
        return _accepted(operation)


def _accepted(operation: Row) -> Response:
    where = reverse("api-operation", args=[operation.pk])
    return Response(
        serializers.Accepted(operation).data,
        status=HTTPStatus.ACCEPTED,
        headers={"Location": where},
    )
