"""How a page says that something is wrong; the only such table of the dashboard."""

from __future__ import annotations

import sys

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


def told(request: HttpRequest, error: PoisonwebError) -> HttpResponse:
    kinds = (kind for kind in STATUS if isinstance(error, kind))
    status = STATUS[next(kinds)]
    return _page(request, status, why=str(error))


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _page(request, 400)


def forbidden(request: HttpRequest, _: Exception) -> HttpResponse:
    return _page(request, 403)


def absent(request: HttpRequest, _: Exception) -> HttpResponse:
    return _page(request, 404)


def broken(request: HttpRequest) -> HttpResponse:
    """Answer for what nobody caught; a database that is away is no fault of ours."""
    if isinstance(sys.exception(), OperationalError | InterfaceError):
        return _page(request, 503, why="Postgres is away. It is tried anew each time.")
    return _page(request, 500)


def _page(request: HttpRequest, status: int, *, why: str = "") -> HttpResponse:
    return render(request, f"{status}.html", {"why": why}, status=status)
