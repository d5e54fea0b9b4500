"""WHO DID WHAT: the audit trail, and whether it is whole."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.openapi import PAGING, TRAIL, described
from apps.api.paging import Window
from apps.api.schemas import trail as schemas
from apps.api.selectors import trail
from apps.api.shapes import trail as shapes
from apps.api.views.base import View, listed
from apps.audit import verification
from apps.team.rights import Scope
from apps.triage.services import trail as message_trail


class Entries(View):
    scopes: ClassVar = {"GET": Scope.AUDIT_READ}

    @described(
        "listAuditEntries",
        "List who decided what, newest first",
        answer=schemas.Entries,
        parameters=[*TRAIL, *PAGING],
        refusals=[HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def get(self, request: Request) -> Response:
        """Not for a key that is for some topics only: the trail spans all of them."""
        window = Window.parse(request.query_params, name="audit")
        asked = message_trail.parse(request.query_params.dict())
        page = trail.matching(asked, window, self.principal)
        return listed(page, [shapes.entry(row) for row in page.rows])


class Verify(View):
    scopes: ClassVar = {"GET": Scope.AUDIT_READ}

    @described(
        "verifyAudit",
        "Recompute the chain of the trail",
        answer=schemas.Verdict,
    )
    def get(self, _: Request) -> Response:
        """`first_bad` is the first that lies; keep `head` elsewhere, to compare."""
        self.principal.require_trail()
        return Response(shapes.verdict(verification.verify()))
