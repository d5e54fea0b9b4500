"""Read the problems that poisons share."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.keyset_pagination import PageWindow
from apps.api.openapi import PAGING, describe_call
from apps.api.selectors import poison_problems
from apps.api.serializers import poison_problems as serializers
from apps.api.serializers.search_query import SearchParams
from apps.api.views.base import View, list_response
from apps.team.rights import Scope


class Problems(View):
    scopes: ClassVar = {"GET": Scope.PROBLEMS_READ}

    @describe_call(
        "listProblems",
        "List the problems that have a poison which matches, last seen first",
        answer=serializers.PoisonProblems,
        parameters=[SearchParams, *PAGING],
        refusals=[HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def get(self, request: Request) -> Response:
        """Lists problems; their counts include all poisons, not only matching ones."""
        window = PageWindow.parse(request, name="problems")
        query = SearchParams.parse_query(request.query_params)
        page, rows = poison_problems.matching(query, window, self.principal)
        return list_response(page, serializers.PoisonProblem(rows, many=True).data)


class Problem(View):
    scopes: ClassVar = {"GET": Scope.PROBLEMS_READ}

    @describe_call(
        "readProblem",
        "Read one problem with the number of its poisons in each state",
        answer=serializers.PoisonProblem,
        refusals=[HTTPStatus.NOT_FOUND],
    )
    def get(self, _: Request, problem_id: int) -> Response:
        problem = poison_problems.one(problem_id, self.principal)
        return Response(serializers.PoisonProblem(problem).data)
