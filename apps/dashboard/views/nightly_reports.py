"""The report pages: failure rates and endpoints, their CSV files, and the runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from django.conf import settings
from django.http import HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect
from django.utils.http import urlencode
from django.views.decorators.http import require_http_methods, require_safe

from apps.core import clock
from apps.core.errors import Invalid, Refused
from apps.core.streaming_responses import response_chunks
from apps.dashboard.decorators import SignedIn, needs, show
from apps.dashboard.keyset_pagination import ListCursor
from apps.dashboard.presentation import api_calls_as_curl, csv_without_formulas
from apps.dashboard.report_params import (
    CHOICES,
    EndpointReportParams,
    PeriodParams,
    ReportParams,
    day,
)
from apps.dashboard.selectors import endpoint_reports, nightly_reports
from apps.reports import report_enqueueing
from apps.reports.services.report_requests import newest_over
from apps.team.rights import Scope

API = "/api/v1/reports/"


@require_safe
@needs(Scope.REPORTS_READ)
def index(request: SignedIn) -> HttpResponse:
    now = clock.now()
    params = ReportParams.of(request.GET, now=now)
    rates = f"{API}failure-rates"
    context = {
        "params": params,
        "report": nightly_reports.find(params, request.user.principal, now=now),
        "choices": CHOICES,
        "query": urlencode(params.as_query),
        "rates": rates,
        "curl": api_calls_as_curl.get(request, rates, **params.as_query),
        **_asking(request),
    }
    live = "reports/_whole_report.html"
    return show(
        request, "reports/failure_rates.html", context, live=live, status=params.status
    )


@require_safe
@needs(Scope.REPORTS_READ)
def download(request: SignedIn) -> StreamingHttpResponse:
    """Answer with a period's failure rates as a CSV file to download.

    Raises Invalid for an invalid period.
    """
    params = ReportParams.of(request.GET, now=clock.now())
    if params.wrong:
        raise params.wrong
    rows = nightly_reports.csv_rows(params, request.user.principal)
    lines = csv_without_formulas.lines(nightly_reports.COLUMNS, rows)
    return _file(request, lines, f"failure-rates-{_between(params)}")


@require_safe
@needs(Scope.REPORTS_READ)
def endpoints(request: SignedIn) -> HttpResponse:
    now = clock.now()
    params = EndpointReportParams.of(request.GET, now=now)
    days = f"{API}endpoints"
    context = {
        "params": params,
        "report": endpoint_reports.find(params, request.user.principal, now=now),
        "choices": CHOICES,
        "query": urlencode(params.as_query),
        "json": days,
        "curl": api_calls_as_curl.get(request, days, **params.as_query),
        **_asking(request),
    }
    live = "reports/_endpoints_report.html"
    return show(
        request, "reports/endpoints.html", context, live=live, status=params.status
    )


@require_safe
@needs(Scope.REPORTS_READ)
def download_endpoints(request: SignedIn) -> StreamingHttpResponse:
    """Answer with a period's daily rows of endpoints as a CSV file to download.

    Raises Invalid for an invalid period.
    """
    params = EndpointReportParams.of(request.GET, now=clock.now())
    if params.wrong:
        raise params.wrong
    rows = endpoint_reports.csv_rows(params, request.user.principal)
    lines = csv_without_formulas.lines(endpoint_reports.COLUMNS, rows)
    return _file(request, lines, f"endpoints-{_between(params)}")


def _between(params: PeriodParams) -> str:
    """Return "first-to-last" of a report's days, as a part of a file name."""
    return f"{params.period.first}-to-{params.period.last}"


def _file(
    request: SignedIn, lines: Iterator[bytes], name: str
) -> StreamingHttpResponse:
    """Stream lines of a report as a CSV file to download."""
    return StreamingHttpResponse(
        response_chunks(request, lines),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}.csv"'},
    )


@require_safe
@needs(Scope.REPORTS_READ)
def runs(request: SignedIn) -> HttpResponse:
    return _runs(request)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.REPORTS_WRITE)
def run(request: SignedIn) -> HttpResponse:
    """Answer the form that requests a report run of some days; redirect to the runs.

    Show the runs and why if it is refused. A GET redirects to the runs.
    """
    if request.method != "POST":
        return redirect("report-runs")  # a reload of the page of a refusal
    try:
        report_enqueueing.request(
            first_day=_posted_day(request, "from"),
            last_day=_posted_day(request, "to"),
            principal=request.user.principal,
            now=clock.now(),
        )
    except Invalid as wrong:
        return _runs(request, wrong=wrong, status=422)
    except Refused as refused:
        return _runs(request, refused=str(refused), status=409)
    return redirect("report-runs")


def _posted_day(request: SignedIn, name: str) -> date:
    """Parse a report run's submitted day; raises Invalid without one."""
    parsed = day(name, request.POST.get(name))
    if parsed is None:
        raise Invalid(name, "choose a day")
    return parsed


def _runs(
    request: SignedIn,
    *,
    wrong: Invalid | None = None,
    refused: str = "",
    status: int = 200,
) -> HttpResponse:
    """Render the list of report runs, with what is wrong with a request."""
    run_page = nightly_reports.runs(ListCursor.parse(request.GET.get("cursor", "")))
    context = {
        "page": run_page,
        "working": any(run.finished_at is None for run in run_page.rows),
        "wrong": wrong,
        "refused": refused,
        "curl": api_calls_as_curl.get(request, f"{API}runs"),
        **_asking(request),
    }
    live = "reports/_report_runs_table.html"
    return show(request, "reports/report_runs.html", context, live=live, status=status)


def _asking(request: SignedIn) -> dict[str, object]:
    """Return the template context of the form that requests a report run."""
    newest = newest_over(clock.now()).isoformat()
    data = request.POST if request.method == "POST" else request.GET
    return {
        "may_ask": request.user.principal.may(Scope.REPORTS_WRITE),
        "first": data.get("from", newest),
        "last": data.get("to", newest),
        "newest": newest,
        "hour": settings.POISONWEB_REPORT_HOUR,
    }
