"""Every request bears an id, shown with its errors and written beside them."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

Handler = Callable[[HttpRequest], HttpResponse]


def RequestIdMiddleware(respond: Handler) -> Handler:  # noqa: N802 - named as Django does
    def middleware(request: HttpRequest) -> HttpResponse:
        request.META["poisonweb.request_id"] = uuid.uuid4().hex
        response = respond(request)
        response["X-Request-Id"] = request_id(request)
        return response

    return middleware


def request_id(request: HttpRequest) -> str:
    return str(request.META.get("poisonweb.request_id", "none"))
