"""Error pages: the only mapping of errors to status codes in the dashboard."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from apps.core.errors import (
    Absent,
    Forbidden,
    Invalid,
    PoisonwebError,
    Refused,
    Unavailable,
)

STATUS: dict[type[PoisonwebError], int] = {
    Invalid: 422,
    Forbidden: 403,
    Absent: 404,
    Refused: 409,
    Unavailable: 503,
}


def error_page(request: HttpRequest, error: PoisonwebError) -> HttpResponse:
    """Render the page of an error, with its status code."""
    return page(request, status_of(error), why=str(error))


def status_of(error: PoisonwebError) -> int:
    """Return the HTTP status code of an error on the dashboard's pages."""
    return next(STATUS[kind] for kind in STATUS if isinstance(error, kind))


def page(request: HttpRequest, status: int, *, why: str = "") -> HttpResponse:
    """Render the error page of a status code; `why` explains it to the person."""
    return render(request, f"{status}.html", {"why": why}, status=status)
