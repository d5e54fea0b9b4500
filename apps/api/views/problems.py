"""THE RECORD: read the problems that poisons share."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.openapi import PAGING, Q, described
from apps.api.paging import Window
from apps.api.selectors import problems
from apps.api.serializers import problems as serializers
from apps.api.shapes import problems as shapes
from apps.api.views.base import View, list_response
from apps.poison.query import Query
from apps.team.rights import Scope


class Problems(View):
    scopes: ClassVar = {"GET": Scope.PROBLEMS_READ}

    @described(
        "listProblems",
        "List the problems that have a poison which matches, last seen first",
        answer=serializers.PoisonProblems,
        parameters=[Q, *PAGING],
        refusals=[HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def get(self, request: Request) -> Response:
        """The counts include all poisons of a problem, not only the matching ones."""
        window = Window.parse(request, name="problems")
        query = Query.parse(request.query_params.get("q", ""))
        page, counts = problems.matching(query, window, self.principal)
        return list_response(
            page, [shapes.problem(row, counts=counts[row.pk]) for row in page.rows]
        )
