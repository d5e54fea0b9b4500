"""Which requests are costly to read is told by their heads alone."""

from __future__ import annotations

import h11
import pytest

from poisonweb.form_and_large_body_process import is_costly

JSON = "/api/v1/failures"


def head(method: str, target: str, **headers: str) -> h11.Request:
    lines = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return h11.Request(method=method, target=target, headers=[("Host", "a"), *lines])


@pytest.mark.parametrize(
    "request_",
    [
        head("GET", "/problems"),
        head("GET", "/api/v1/skips/stream?topic=orders"),
        head("POST", JSON),
        head("POST", JSON, Content_Length="65536"),
        head("POST", JSON, Content_Length="65536", Content_Encoding="identity"),
    ],
)
def test_pages_and_small_api_requests_are_not_costly(request_: h11.Request) -> None:
    assert not is_costly(request_)


@pytest.mark.parametrize(
    "request_",
    [
        head("POST", "/sign-in"),
        head("POST", "/sign-in?next=/api/v1/"),
        head("POST", "/%61pi/v1/failures"),
        head("POST", JSON, Content_Length="65537"),
        head("PUT", "/api/v1/topics/1", Content_Length="65537"),
        head("POST", JSON, Transfer_Encoding="chunked"),
        head("POST", JSON, Content_Length="20", Content_Encoding="gzip"),
        head("POST", JSON, Content_Length="20", Content_Encoding="ZSTD"),
    ],
)
def test_forms_and_large_requests_are_costly(request_: h11.Request) -> None:
    assert is_costly(request_)
