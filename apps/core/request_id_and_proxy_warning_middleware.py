"""Give every request an id, for error pages and logs; warn of untrusted proxies."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

Handler = Callable[[HttpRequest], HttpResponse]

log = logging.getLogger(__name__)


def RequestIdMiddleware(respond: Handler) -> Handler:  # noqa: N802 - named as Django does
    """Give each request an id, and its response the id as X-Request-Id."""

    def middleware(request: HttpRequest) -> HttpResponse:
        request.META["poisonweb.request_id"] = uuid.uuid4().hex
        response = respond(request)
        response["X-Request-Id"] = request_id(request)
        return response

    return middleware


def request_id(request: HttpRequest) -> str:
    """Return the id that the middleware gave the request; "none" without one."""
    return str(request.META.get("poisonweb.request_id", "none"))


class ForwardedMiddleware:
    """Warn once per process that X-Forwarded-For comes from an untrusted proxy.

    Then all people share the proxy's address, and wrong passwords of a stranger delay
    the sign-in of them all.
    """

    def __init__(self, respond: Handler) -> None:
        self._respond = respond
        self._should_warn = True

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if self._should_warn and _is_disregarded(request):
            self._should_warn = False
            log.warning(
                "X-Forwarded-For of %s is disregarded: if that is your proxy, name it "
                "in FORWARDED_ALLOW_IPS, or all people share its address",
                request.META.get("REMOTE_ADDR"),
            )
        return self._respond(request)


def _is_disregarded(request: HttpRequest) -> bool:
    """Tell whether the server ignored the addresses of an X-Forwarded-For header."""
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "")
    return bool(forwarded) and request.META.get("REMOTE_ADDR", "") not in forwarded
