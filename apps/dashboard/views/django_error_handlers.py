"""The handlers that Django calls for what no view has answered."""

from __future__ import annotations

import sys
from collections.abc import Callable

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse

from apps.dashboard.domain_error_pages import page


def _handler(status: int) -> Callable[[HttpRequest, Exception], HttpResponse]:
    """Return a Django error handler that renders the page of a status code."""

    def handler(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 - Django passes it
        return page(request, status)

    return handler


bad_request, forbidden, not_found = _handler(400), _handler(403), _handler(404)


def server_error(request: HttpRequest) -> HttpResponse:
    """Handle an uncaught error: 503 if Postgres is unavailable, 500 otherwise."""
    if isinstance(sys.exception(), OperationalError | InterfaceError):
        response = page(request, 503, why="Postgres is away, or overloaded.")
        response["Retry-After"] = "5"
        return response
    return page(request, 500)
