"""The envelope of a request is read strictly, and its bytes stay as they came."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from apps.brokers.adapter_contract import Header
from apps.core.errors import Invalid
from apps.redelivery.topic_requests.request_envelopes import RequestEnvelope, parse

ODD = bytes(range(256))


def by_json(**members: Any) -> bytes:
    return json.dumps({"version": 1, "endpoint": "quotes", **members}).encode()


def by_headers(**values: bytes) -> list[Header]:
    fields = {"endpoint": b"quotes", **values}
    return [
        (f"X-Poisonweb-{name.replace('_', '-')}".encode(), value)
        for name, value in fields.items()
    ]


def test_both_forms_say_the_same() -> None:
    headers = by_headers(
        path=b"/a%20b?x=1?y", method=b"PUT", idempotency_key=b"order-13"
    )
    headers.insert(0, (b"x-poisonweb-http-X-Odd", b"\xff\x80"))
    headers.append((b"traceparent", b"00-1"))
    document = by_json(
        path="/a%20b?x=1?y",
        method="PUT",
        idempotency_key="order-13",
        headers=[["X-Odd", "\xff\x80"]],
        body=base64.b64encode(ODD).decode(),
    )

    said = parse(ODD, headers)

    assert said == parse(document, [(b"traceparent", b"00-1")])
    assert said == RequestEnvelope(
        endpoint="quotes",
        path=b"/a%20b",
        query=b"x=1?y",
        method="PUT",
        headers=[(b"X-Odd", b"\xff\x80"), (b"Idempotency-Key", b"order-13")],
        body=ODD,
    )


def test_an_envelope_needs_an_endpoint_and_nothing_else() -> None:
    usual = RequestEnvelope(endpoint="quotes", headers=[])

    assert parse(b"", by_headers()) == parse(by_json(), []) == usual
    assert (usual.method, usual.path, usual.body) == ("POST", b"", b"")


def test_json_keeps_the_order_of_headers_and_their_duplicates() -> None:
    pairs = [["B", "1"], ["A", "2"], ["B", "1"]]

    assert parse(by_json(headers=pairs), []).headers == [
        (b"B", b"1"),
        (b"A", b"2"),
        (b"B", b"1"),
    ]


def test_a_request_keeps_the_number_of_gateways_that_it_passed() -> None:
    headers = [*by_headers(), (b"x-poisonweb-hops", b"3")]

    assert parse(b"", headers).headers == [(b"x-poisonweb-hops", b"3")]


@pytest.mark.parametrize(
    "path",
    [
        "http://evil.example/",
        "https:evil.example",
        "evil.example",
        "anna@evil.example/x",
        "../admin",
        "\\\\evil.example",
        " /quotes",
        "\r\nHost: evil.example",
    ],
)
def test_a_path_that_begins_with_no_slash_is_no_path(path: str) -> None:
    with pytest.raises(Invalid, match="never a URL"):
        parse(by_json(path=path), [])
    with pytest.raises(Invalid, match="never a URL"):
        parse(b"", by_headers(path=path.encode()))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "envelope"),
        (b"[]", "envelope"),
        (b"null", "envelope"),
        (b"\xff\xfe\x00", "envelope"),
        (b'{"version": 1, "endpoint": "quotes"', "envelope"),
        (b'{"version": 1, "endpoint": "a", "endpoint": "quotes"}', "envelope"),
        (b"[" * 200_000, "envelope"),
        (b'{"version": ' + b"9" * 5_000 + b"}", "envelope"),
        (by_json(url="http://evil.example"), "envelope"),
        (by_json(URL="http://evil.example"), "envelope"),
        (b'{"endpoint": "quotes"}', "version"),
        (by_json(version=2), "version"),
        (by_json(version=True), "version"),
        (by_json(version=1.0), "version"),
        (by_json(version="1"), "version"),
        (b'{"version": 1}', "endpoint"),
        (by_json(endpoint=None), "endpoint"),
        (by_json(endpoint=["quotes"]), "endpoint"),
        (by_json(path=None), "path"),
        (by_json(path=7), "path"),
        (by_json(method=["GET"]), "method"),
        (by_json(method="G\xcbT"), "method"),
        (by_json(method="G" * 41), "method"),
        (by_json(body="PHF1b3RlLz4"), "body"),
        (by_json(body="not base64!"), "body"),
        (by_json(body="\u20ac"), "body"),
        (by_json(body={"a": 1}), "body"),
        (by_json(headers={"Accept": "*/*"}), "headers"),
        (by_json(headers=[["Accept"]]), "headers"),
        (by_json(headers=[["Accept", 1]]), "headers"),
        (by_json(headers=[["Accept", "1", "2"]]), "headers"),
        (by_json(headers=["ab"]), "headers"),
        (by_json(headers=[["Accept", "\u20ac"]]), "headers"),
        (by_json(headers=[["Accept", "\ud800"]]), "headers"),
        (by_json(idempotency_key="\u20ac"), "idempotency_key"),
    ],
)
def test_what_is_no_envelope_is_refused_with_the_member(
    body: bytes, field: str
) -> None:
    with pytest.raises(Invalid) as wrong:
        parse(body, [])
    assert wrong.value.field == field


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ([*by_headers(), *by_headers()], "x-poisonweb-endpoint"),
        ([*by_headers(path=b"/a"), (b"x-poisonweb-PATH", b"/b")], "x-poisonweb-path"),
        (by_headers(endpoint=b"qu\xf6tes"), "x-poisonweb-endpoint"),
        (by_headers(method=b"G\xcbT"), "x-poisonweb-method"),
    ],
)
def test_headers_that_say_two_things_or_no_text_are_refused(
    headers: list[Header], field: str
) -> None:
    with pytest.raises(Invalid) as wrong:
        parse(b"", headers)
    assert wrong.value.field == field
