"""A proxy that is not trusted is noticed in the log, and that once."""

from __future__ import annotations

import asyncio
import logging
from io import BytesIO
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from apps.core.request_id_and_proxy_warning_middleware import ForwardedMiddleware

PROXY, PERSON = "172.18.0.1", "203.0.113.9"


def request_of(peer: str, trusted: str, **headers: str) -> HttpRequest:
    """Give a request as Django gets it from uvicorn, which trusts these peers."""
    requests: list[HttpRequest] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        requests.append(ASGIRequest(scope, BytesIO()))

    raw_headers = [
        (name.replace("_", "-").encode(), v.encode()) for name, v in headers.items()
    ]
    scope: Any = {"type": "http", "method": "GET", "path": "/", "headers": raw_headers}
    scope |= {"client": (peer, 5), "server": ("web", 80), "query_string": b""}
    door: Any = ProxyHeadersMiddleware(application, trusted)
    asyncio.run(door(scope, None, None))
    return requests[0]


def warnings(caplog: pytest.LogCaptureFixture, *requests: HttpRequest) -> list[str]:
    answer = ForwardedMiddleware(lambda _: HttpResponse())
    with caplog.at_level(
        logging.WARNING, "apps.core.request_id_and_proxy_warning_middleware"
    ):
        for request in requests:
            assert answer(request).status_code == 200
    return [record.getMessage() for record in caplog.records]


def test_a_proxy_that_is_not_trusted_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stranger = request_of(PROXY, "127.0.0.1", x_forwarded_for=PERSON)

    [said] = warnings(caplog, *[stranger] * 3)

    assert said.startswith(f"X-Forwarded-For of {PROXY} is disregarded")
    assert "FORWARDED_ALLOW_IPS" in said


@pytest.mark.parametrize("sender", [PERSON, f"198.51.100.7, {PERSON}", f"{PERSON}:99"])
def test_a_proxy_that_is_trusted_gives_no_reason_for_a_line(
    caplog: pytest.LogCaptureFixture, sender: str
) -> None:
    trusted = request_of(PROXY, "172.16.0.0/12", x_forwarded_for=sender)
    without = request_of(PERSON, "127.0.0.1")

    assert trusted.META["REMOTE_ADDR"] == PERSON
    assert warnings(caplog, trusted, without) == []
