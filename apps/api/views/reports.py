"""OVER TIME: list failure rates, and the runs that published them."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.openapi import PAGING, RATES, described
from apps.api.paging import Window
from apps.api.parameters.reports import RateParams
from apps.api.selectors import reports
from apps.api.serializers import reports as serializers
from apps.api.shapes import reports as shapes
from apps.api.views.base import View, list_response
from apps.core import clock
from apps.team.rights import Scope


class FailureRates(View):
    scopes: ClassVar = {"GET": Scope.REPORTS_READ}

    @described(
        "listFailureRates",
        "List failure rates by day or hour, newest first",
        answer=serializers.FailureRates,
        parameters=[*RATES, *PAGING],
        refusals=[HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def get(self, request: Request) -> Response:
        """A missing day was not reported, or nothing happened on it."""
        window = Window.parse(request.query_params, name="failure-rates")
        params = RateParams.parse(request.query_params, now=clock.now())
        page = reports.rates(params, window, self.principal)
        return list_response(page, [shapes.rate(row) for row in page.rows])


class Runs(View):
    scopes: ClassVar = {"GET": Scope.REPORTS_READ}

    @described(
        "listReportRuns",
        "List the runs that make the reports, newest first",
        answer=serializers.ReportRuns,
        parameters=PAGING,
        refusals=[HTTPStatus.BAD_REQUEST],
    )
    def get(self, request: Request) -> Response:
        window = Window.parse(request.query_params, name="report-runs")
        page, sees_all = reports.runs(window), self.principal.sees_every_topic
        return list_response(
            page, [shapes.run(row, with_trouble=sees_all) for row in page.rows]
        )
