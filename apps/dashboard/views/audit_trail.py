"""The audit page, its download files, and the verification of the chain."""

from __future__ import annotations

from collections.abc import Iterator

from django.http import HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.utils.http import urlencode
from django.views.decorators.http import require_http_methods, require_safe

from apps.audit import verification
from apps.audit.filters import PARAMETERS, TEXT_LIMIT
from apps.audit.models import Entry
from apps.core import clock
from apps.core.errors import Invalid
from apps.core.streaming_responses import response_chunks
from apps.dashboard.decorators import SignedIn, needs
from apps.dashboard.keyset_pagination import ListCursor
from apps.dashboard.presentation import api_calls_as_curl, csv_without_formulas
from apps.dashboard.presentation.audit_action_labels import GROUPS
from apps.dashboard.selectors import audit_checkpoint, audit_trail
from apps.team.rights import Scope
from apps.triage.services import message_audit_filter


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.AUDIT_READ)
def index(request: SignedIn) -> HttpResponse:
    """Show a page of the audit trail's entries; a POST verifies its chain, too."""
    request.user.principal.require_trail()
    params = _params(request)
    page, wrong = None, None
    try:
        filters = message_audit_filter.parse(params)
        cursor = ListCursor.parse(request.GET.get("cursor", ""), has_time=False)
        page = audit_trail.find(filters, cursor, sees_people=request.user.is_admin)
    except Invalid as invalid:
        wrong = invalid
    context = {
        "params": {name: params.get(name, "") for name in PARAMETERS},
        "filters": params,
        "query": urlencode(params),
        "actions": {group: words.items() for group, words in GROUPS.items()}.items(),
        "actors": audit_trail.actors(),
        "most": audit_trail.MOST_EXPORTED,
        "longest": TEXT_LIMIT,
        "checkpoint": audit_checkpoint.status(now=clock.now()),
        "page": page,
        "wrong": wrong,
        "verdict": verification.verify() if request.method == "POST" else None,
        "curl": api_calls_as_curl.get(request, "/api/v1/audit", **params),
    }
    return render(
        request, "audit/entry_list.html", context, status=422 if wrong else 200
    )


@require_safe
@needs(Scope.AUDIT_READ)
def download_csv(request: SignedIn) -> StreamingHttpResponse:
    """Answer with the filtered audit entries as a CSV file to download.

    Raises Invalid for too many.
    """
    rows = audit_trail.cells(_exported(request))
    chunks = csv_without_formulas.lines(audit_trail.COLUMNS, rows)
    return _file(request, chunks, kind="text/csv; charset=utf-8", suffix="csv")


@require_safe
@needs(Scope.AUDIT_READ)
def download_ndjson(request: SignedIn) -> StreamingHttpResponse:
    """Answer with the filtered audit entries as an NDJSON file to download.

    Raises Invalid for too many.
    """
    chunks = audit_trail.lines(_exported(request))
    return _file(request, chunks, kind="application/x-ndjson", suffix="ndjson")


def _params(request: SignedIn) -> dict[str, str]:
    """Return the audit filters that are set, without surrounding blanks."""
    typed = {name: request.GET.get(name, "").strip() for name in PARAMETERS}
    return {name: value for name, value in typed.items() if value}


def _exported(request: SignedIn) -> Iterator[Entry]:
    """Yield the filtered audit entries to download.

    Raises Invalid if they are too many, and Forbidden without the right.
    """
    request.user.principal.require_trail()
    return audit_trail.export(message_audit_filter.parse(_params(request)))


def _file(
    request: SignedIn, chunks: Iterator[bytes], *, kind: str, suffix: str
) -> StreamingHttpResponse:
    """Stream audit entries as a file to download, whose name has the day."""
    name = f"audit-{clock.now():%Y-%m-%d}.{suffix}"
    return StreamingHttpResponse(
        response_chunks(request, chunks),
        content_type=kind,
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )
