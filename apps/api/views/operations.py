"""OUT: confirm, follow and undo a decision."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from django.urls import reverse
from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.idempotency import idempotent
from apps.api.openapi import IDEMPOTENCY_KEY, PAGING, REFUSED_KEY, described
from apps.api.paging import PageWindow
from apps.api.selectors import operations
from apps.api.serializers import operations as serializers
from apps.api.views.base import View, list_response
from apps.core import clock
from apps.team.rights import Scope
from apps.triage import dispatch
from apps.triage.models import Operation as Row


class Operations(View):
    scopes: ClassVar = {
        "GET": Scope.OPERATIONS_READ,
        "POST": Scope.OPERATIONS_WRITE,
    }

    @described(
        "listOperations",
        "List what was decided, newest first",
        answer=serializers.Operations,
        parameters=PAGING,
        refusals=[HTTPStatus.BAD_REQUEST],
    )
    def get(self, request: Request) -> Response:
        """A key for some topics sees what was decided under its own patterns."""
        window = PageWindow.parse(request, name="operations")
        page = operations.recent(window, self.principal)
        return list_response(page, serializers.OperationRow(page.rows, many=True).data)

    @described(
        "confirmOperation",
        "Carry out what a preview showed",
        request=serializers.Decision,
        answer=serializers.Accepted,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """A token that was used or has expired is a 409 with a new preview."""
        operation = dispatch.confirm(
            **serializers.Decision.parse(request.data),
            principal=self.principal,
            now=clock.now(),
        )
        return _accepted(operation)


class Operation(View):
    scopes: ClassVar = {"GET": Scope.OPERATIONS_READ}

    @described(
        "readOperation",
        "Follow an operation: its counts always add up to its total",
        answer=serializers.OperationDetail,
        refusals=[HTTPStatus.NOT_FOUND],
    )
    def get(self, _: Request, operation_id: int) -> Response:
        detail = operations.one(operation_id, self.principal, now=clock.now())
        return Response(serializers.OperationDetail(detail).data)


class Undo(View):
    scopes: ClassVar = {"POST": Scope.OPERATIONS_WRITE}

    @described(
        "undoOperation",
        "Restore what a drop dropped, as an operation of its own",
        answer=serializers.Accepted,
        parameters=[IDEMPOTENCY_KEY],
        refusals=[HTTPStatus.NOT_FOUND, *REFUSED_KEY],
    )
    @idempotent
    def post(self, _: Request, operation_id: int) -> Response:
        operation = dispatch.undo(
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
