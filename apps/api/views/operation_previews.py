"""Preview what an operation would do."""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus
from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.openapi import describe_call
from apps.api.selectors import triage_operations
from apps.api.serializers import operation_previews as serializers
from apps.api.views.base import View
from apps.core import clock
from apps.team.rights import Principal, Scope
from apps.triage import operation_enqueueing
from apps.triage.services import preview_summaries
from apps.triage.services.preview_summaries import PreviewSummary


class Preview(View):
    scopes: ClassVar = {
        "GET": Scope.OPERATIONS_WRITE,
        "POST": Scope.OPERATIONS_WRITE,
    }

    @describe_call(
        "previewOperation",
        "Freeze a selection and see what would be done",
        request=serializers.Ask,
        answer=serializers.Preview,
        refusals=[HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def post(self, request: Request) -> Response:
        """Previews an operation, and changes nothing.

        A preview ends when it is confirmed, or after 15 minutes. A 409 says that the
        key has 200 previews that are not confirmed yet.
        """
        now = clock.now()
        selection = serializers.Ask.parse(request.data)
        operation = operation_enqueueing.preview(
            selection=selection, principal=self.principal, now=now
        )
        summary = preview_summaries.summarize(operation=operation)
        return preview_response(summary, self.principal, now=now)

    @describe_call(
        "readPreview",
        "Look again at a preview of one's own, while it is being taken",
        answer=serializers.Preview,
        parameters=[serializers.PreviewParams],
        refusals=[HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def get(self, request: Request) -> Response:
        token = serializers.PreviewParams.parse_query(request.query_params)
        summary = triage_operations.preview(token, self.principal)
        return preview_response(summary, self.principal, now=clock.now())


def preview_response(
    summary: PreviewSummary, principal: Principal, *, now: datetime
) -> Response:
    skipped_again = triage_operations.skipped_again(summary, principal, now=now)
    context = {"now": now, "skipped_again": skipped_again}
    return Response(serializers.Preview(summary, context=context).data)
