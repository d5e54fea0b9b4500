"""Error pages: the only mapping of errors to status codes in the dashboard."""

from __future__ import annotations

import sys
from collections.abc import Callable

from django.db import InterfaceError, OperationalError
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
    return _page(request, status_of(error), why=str(error))


def status_of(error: PoisonwebError) -> int:
    return next(STATUS[kind] for kind in STATUS if isinstance(error, kind))


def _handler(status: int) -> Callable[[HttpRequest, Exception], HttpResponse]:
    def handler(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 - Django passes it
        return _page(request, status)

    return handler


bad_request, forbidden, not_found = _handler(400), _handler(403), _handler(404)


def server_error(request: HttpRequest) -> HttpResponse:
    """Handle an uncaught error: 503 if Postgres is unavailable, 500 otherwise."""
    if isinstance(sys.exception(), OperationalError | InterfaceError):
        return _page(request, 503, why="Postgres is away, or overloaded.")
    return _page(request, 500)


def _page(request: HttpRequest, status: int, *, why: str = "") -> HttpResponse:
    return render(request, f"{status}.html", {"why": why}, status=status)
