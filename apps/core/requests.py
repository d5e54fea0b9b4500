"""Every request bears an id, shown with its errors and written beside them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

Handler = Callable[[HttpRequest], HttpResponse]

log = logging.getLogger(__name__)


def RequestIdMiddleware(respond: Handler) -> Handler:  # noqa: N802 - named as Django does
    def middleware(request: HttpRequest) -> HttpResponse:
        request.META["poisonweb.request_id"] = uuid.uuid4().hex
        response = respond(request)
        response["X-Request-Id"] = request_id(request)
        return response

    return middleware


def request_id(request: HttpRequest) -> str:
    return str(request.META.get("poisonweb.request_id", "none"))


class ForwardedMiddleware:
    """Says once, of a process, that a proxy passes on addresses nobody trusts it with.

    Then all people share its address, and a stranger's wrong passwords delay them all.
    """

    def __init__(self, respond: Handler) -> None:
        self._respond = respond
        self._is_silent = True

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if self._is_silent and _is_disregarded(request):
            self._is_silent = False
            log.warning(
                "X-Forwarded-For of %s is disregarded: if that is your proxy, name it "
                "in FORWARDED_ALLOW_IPS, or all people share its address",
                request.META.get("REMOTE_ADDR"),
            )
        return self._respond(request)


def _is_disregarded(request: HttpRequest) -> bool:
    """Tell whether a header names senders, and the server took none of them for it."""
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "")
    return bool(forwarded) and request.META.get("REMOTE_ADDR", "") not in forwarded
