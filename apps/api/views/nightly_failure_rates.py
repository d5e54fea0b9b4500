"""List failure rates and endpoints by day, and the runs that published."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.keyset_pagination import PageWindow
from apps.api.openapi import PAGING, describe_call
from apps.api.selectors import nightly_failure_rates
from apps.api.serializers import nightly_failure_rates as serializers
from apps.api.views.base import View, list_response
from apps.core import clock
from apps.team.rights import Scope


class FailureRates(View):
    scopes: ClassVar = {"GET": Scope.REPORTS_READ}

    @describe_call(
        "listFailureRates",
        "List failure rates by day or hour, newest first",
        answer=serializers.FailureRates,
        parameters=[serializers.RateQuery, *PAGING],
        refusals=[HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def get(self, request: Request) -> Response:
        """Lists failure rates. A missing day was not reported, or nothing happened."""
        window = PageWindow.parse(request, name="failure-rates")
        query = serializers.RateQuery.parse_query(request.query_params)
        days = nightly_failure_rates.with_default_days(
            first=query.pop("first"), last=query.pop("last"), now=clock.now()
        )
        page = nightly_failure_rates.rates(window, self.principal, days=days, **query)
        return list_response(page, serializers.FailureRate(page.rows, many=True).data)


class EndpointDays(View):
    scopes: ClassVar = {"GET": Scope.REPORTS_READ}

    @describe_call(
        "listEndpointDays",
        "List how the calls of endpoints ended by day, newest first",
        answer=serializers.EndpointDays,
        parameters=[serializers.EndpointDayQuery, *PAGING],
        refusals=[HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def get(self, request: Request) -> Response:
        """Lists endpoints' days. A missing one was not reported, or had no calls."""
        window = PageWindow.parse(request, name="endpoint-days")
        query = serializers.EndpointDayQuery.parse_query(request.query_params)
        days = nightly_failure_rates.with_default_days(
            first=query.pop("first"), last=query.pop("last"), now=clock.now()
        )
        page = nightly_failure_rates.endpoint_days(
            window, self.principal, days=days, **query
        )
        return list_response(page, serializers.EndpointDay(page.rows, many=True).data)


class Runs(View):
    scopes: ClassVar = {"GET": Scope.REPORTS_READ}

    @describe_call(
        "listReportRuns",
        "List the runs that make the reports, newest first",
        answer=serializers.ReportRuns,
        parameters=PAGING,
        refusals=[HTTPStatus.BAD_REQUEST],
    )
    def get(self, request: Request) -> Response:
        window = PageWindow.parse(request, name="report-runs")
        page = nightly_failure_rates.runs(window)
        context = {"sees_every_topic": self.principal.sees_every_topic}
        rows = serializers.ReportRun(page.rows, many=True, context=context)
        return list_response(page, rows.data)
