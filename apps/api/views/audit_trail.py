"""List the audit trail, and verify that it is whole."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.keyset_pagination import PageWindow
from apps.api.openapi import AUDIT_FILTERS, PAGING, describe_call
from apps.api.selectors import audit_trail
from apps.api.serializers import audit_trail as serializers
from apps.api.views.base import View, list_response
from apps.audit import verification
from apps.team.rights import Scope
from apps.triage.services import message_audit_filter


class Entries(View):
    scopes: ClassVar = {"GET": Scope.AUDIT_READ}

    @describe_call(
        "listAuditEntries",
        "List who decided what, newest first",
        answer=serializers.Entries,
        parameters=[*AUDIT_FILTERS, *PAGING],
        refusals=[HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def get(self, request: Request) -> Response:
        """Lists audit entries. A key for some topics only is refused: they span all."""
        window = PageWindow.parse(request, name="audit")
        filters = message_audit_filter.parse(request.query_params.dict())
        page = audit_trail.matching(filters, window, self.principal)
        return list_response(page, serializers.Entry(page.rows, many=True).data)


class Verify(View):
    scopes: ClassVar = {"GET": Scope.AUDIT_READ}

    @describe_call(
        "verifyAudit",
        "Recompute the chain of the trail",
        answer=serializers.Verdict,
    )
    def get(self, _: Request) -> Response:
        """Checks the audit trail; `first_bad` is its first altered entry.

        Store `head` elsewhere to compare.
        """
        self.principal.require_trail()
        return Response(serializers.Verdict(verification.verify()).data)
