"""What the gateway refuses, with a clear answer, and nothing is stored or called."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from apps.core import clock
from apps.core.actor import Actor
from apps.redelivery.gateway import application
from apps.redelivery.models import Delivery, Endpoint
from apps.team.models import ApiKey
from apps.team.rights import Scope
from apps.team.services import revoke_api_key
from poisonweb import request_arrival_timeout
from tests.integration.redelivery.gateway.gateway_in_a_thread import (
    Answer,
    Gateway,
    endpoint_of,
    key,
    ok,
    running_gateway,
)
from tests.unit.redelivery.scripted_back_end import ScriptedBackEnd, Visit, answering
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

LIMIT = 5_000
SOAP_1_1: dict[str, Any] = {"Content_Type": "text/xml", "SOAPAction": '""'}
BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE e [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">'
    b'<!ENTITY file SYSTEM "file:///etc/passwd">]>'
    b'<e:Envelope xmlns:e="http://schemas.xmlsoap.org/soap/envelope/">&b;&file;'
    b"</e:Envelope>"
)


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with running_gateway(POISONWEB_REQUEST_LIMIT=LIMIT) as running:
        yield running


@pytest.fixture
def quotes(gateway: Gateway) -> Iterator[tuple[Endpoint, ScriptedBackEnd]]:
    """Give an endpoint whose back end must not be called."""
    with endpoint_of(answering(ok()), paths=("/quotes/*",)) as (endpoint, server):
        yield endpoint, server
        assert server.requests == []
        assert not Delivery.objects.exists()


def refusal(answer: Answer) -> tuple[int, str]:
    assert answer.header("content-type") == "application/problem+json"
    assert answer.document["status"] == answer.status
    return answer.status, answer.document["detail"]


def test_no_path_escapes_its_endpoint(
    gateway: Gateway, quotes: tuple[Endpoint, ScriptedBackEnd]
) -> None:
    endpoint, _ = quotes
    statuses = {
        path: refusal(gateway.call(f"/gateway/{endpoint}{path}"))[0]
        for path in (
            "/quotes/../admin",
            "/quotes/%2e%2e/admin",
            "/quotes/%252e%252e/admin",
            "/quotes/..;/admin",
            "//evil.example/quotes/",
            "/quotes/%00",
            "/quotes/%0d%0aX-Evil:1",
            "/quotes/%zz",
            "/admin",
            "",
            "/quotes/" + "a" * 9_000,
        )
    }

    assert {path for path, status in statuses.items() if status == 404} == {
        "/admin",
        "",
    }
    assert set(statuses.values()) == {400, 404}


def test_headers_have_limits(
    gateway: Gateway,
    quotes: tuple[Endpoint, ScriptedBackEnd],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("poisonweb.gateway_http_protocol.LINGER_SECONDS", 60.0)
    endpoint, _ = quotes
    address = f"/gateway/{endpoint}/quotes/IBM"
    head = f"GET {address} HTTP/1.1\nHost: x\nX-Poisonweb-Key: KEY\n"

    refused = [
        gateway.raw(head + "X-Twice: 1\n" * 300 + "\n"),
        gateway.raw(head + f"X-Large: {'x' * 100_000}\n\n"),
        # More than two reads: the limit is met before the head is whole.
        gateway.raw(head + f"X-Huge: {'x' * 600_000}\n\n"),
        gateway.raw(head + "X-Odd: a\rb\n\n"),
        gateway.raw(head + "Idempotency-Key: 1\nIdempotency-Key: 2\n\n"),
        gateway.raw(head + "X-Poisonweb-Hops: 5\n\n"),
        gateway.raw(head + "X-Poisonweb-Hops: -1\n\n"),
        gateway.raw("no http\n\n"),
    ]

    statuses = [status for status, _ in refused]
    assert statuses == [431, 431, 400, 400, 400, 508, 400, 400]
    assert [document["status"] for _, document in refused] == statuses


def test_bodies_have_limits_however_they_come(
    gateway: Gateway, quotes: tuple[Endpoint, ScriptedBackEnd]
) -> None:
    endpoint, _ = quotes
    address = f"/gateway/{endpoint}/quotes/"
    head = f"POST {address} HTTP/1.1\nHost: x\nX-Poisonweb-Key: KEY\n"

    chunks = f"{LIMIT + 1:x}\n{'x' * (LIMIT + 1)}\n0\n\n"
    refused = [
        gateway.raw(head + f"Content-Length: {LIMIT + 1}\n\n", b"x" * (LIMIT + 1)),
        gateway.raw(head + "Transfer-Encoding: chunked\n\n" + chunks),
        gateway.raw(head + "Transfer-Encoding: chunked\nContent-Length: 1\n\n0\n\n"),
        gateway.raw(head + "Content-Length: 1\nContent-Length: 2\n\n"),
        gateway.raw(head + "Content-Length: -1\n\n"),
        gateway.raw(head + "Content-Length: 100\n\n", b"short", ends=True),
        gateway.raw(head + "Transfer-Encoding: gzip\n\n"),
    ]

    statuses = [status for status, _ in refused]
    assert statuses[:6] == [413, 413, 400, 400, 400, 400]
    assert str(LIMIT) in refused[0][1]["detail"]


def test_a_slow_request_ends_with_its_time(
    gateway: Gateway,
    quotes: tuple[Endpoint, ScriptedBackEnd],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint, _ = quotes
    monkeypatch.setattr(request_arrival_timeout, "SECONDS", 0.3)
    head = f"POST /gateway/{endpoint}/quotes/ HTTP/1.1\nHost: x\nX-Poisonweb-Key: KEY\n"

    with gateway.open(head + "Content-Length: 100\n\n", b"a drip") as sock:
        assert sock.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_soap_with_a_doctype_is_refused_and_never_expanded(
    gateway: Gateway, quotes: tuple[Endpoint, ScriptedBackEnd]
) -> None:
    endpoint, _ = quotes
    address = f"/gateway/{endpoint}/quotes/"

    old = gateway.call(address, method="POST", body=BOMB, **SOAP_1_1)
    new = gateway.call(
        address, method="POST", body=BOMB, Content_Type="application/soap+xml"
    )

    assert (old.status, new.status) == (400, 400)
    assert b"<faultcode>soap:Client</faultcode>" in old.body
    assert b"<env:Value>env:Sender</env:Value>" in new.body
    assert b"A SOAP envelope has no doctype: remove it." in old.body
    assert b"aaaa" not in old.body


def test_other_xml_passes_byte_for_byte(gateway: Gateway) -> None:
    with endpoint_of(answering(ok())) as (endpoint, server):
        answer = gateway.call(
            f"/gateway/{endpoint}", method="POST", body=BOMB, Content_Type="text/xml"
        )

    assert answer.status == 200
    assert server.requests[0].endswith(BOMB)


def test_any_method_passes(gateway: Gateway) -> None:
    methods = ("GET", "HEAD", "OPTIONS", "PATCH", "PROPFIND", "purge", "TRACE")
    with endpoint_of(answering(ok(b""))) as (endpoint, server):
        answers = [gateway.call(f"/gateway/{endpoint}/", method=m) for m in methods]
        upgrade = gateway.call(
            f"/gateway/{endpoint}/", Connection="upgrade", Upgrade="websocket"
        )
        tunnel = gateway.call(f"/gateway/{endpoint}/", method="CONNECT")

    assert [answer.status for answer in answers] == [200] * len(methods)
    called = [each.split()[0].decode() for each in server.requests]
    assert called == [*methods, "GET"]
    assert (upgrade.status, b"upgrade" in server.requests[-1].lower()) == (200, False)
    assert tunnel.status == 400


def test_a_call_needs_a_key_for_its_endpoint(
    gateway: Gateway, quotes: tuple[Endpoint, ScriptedBackEnd]
) -> None:
    endpoint, _ = quotes
    address = f"/gateway/{endpoint}/quotes/"
    ended = key(name="shop")
    revoke_api_key(name="shop", actor=Actor.system("test"), now=clock.now())
    expired = key(name="expired")
    past = clock.now() - timedelta(minutes=1)
    ApiKey.objects.filter(name="expired").update(expires_at=past)

    assert refusal(gateway.call(address, secret="pw_local_no"))[0] == 401
    assert refusal(gateway.call(address, secret=ended))[0] == 401
    assert refusal(gateway.call(address, secret=expired))[0] == 401
    assert refusal(gateway.call(address, secret=key(Scope.CAPTURE_WRITE)))[0] == 403
    other = gateway.call(address, secret=key(topics=("gateway/other-*",)))
    unknown = gateway.call(f"/gateway/{endpoint}x/quotes/")
    assert refusal(other)[0] == refusal(unknown)[0] == 404
    soap = gateway.call(address, secret="pw_local_no", method="POST", **SOAP_1_1)
    assert (soap.status, b"soap:Client" in soap.body) == (401, True)
    assert refusal(gateway.call("/elsewhere"))[0] == 404
    wait_until(lambda: ApiKey.objects.get(name="shop").refused_at is not None)


def test_the_key_may_be_a_bearer_token(gateway: Gateway) -> None:
    with endpoint_of(answering(ok())) as (endpoint, server):
        head = f"GET /gateway/{endpoint} HTTP/1.1\nHost: x\nConnection: close\n"
        with gateway.open(head + "Authorization: bearer KEY\n\n") as sock:
            assert sock.recv(1000).startswith(b"HTTP/1.1 200 ")

    assert b"authorization" not in server.requests[0].lower()
    wait_until(lambda: ApiKey.objects.get().last_used_at)


def test_a_revoked_key_and_a_disabled_endpoint_are_refused_within_two_seconds(
    gateway: Gateway,
) -> None:
    secret = key(name="shop")
    with endpoint_of(answering(ok())) as (endpoint, _):
        address = f"/gateway/{endpoint}/"
        assert gateway.call(address, secret=secret).status == 200
        revoke_api_key(name="shop", actor=Actor.system("test"), now=clock.now())
        Endpoint.objects.update(is_enabled=False, version=2)

        wait_until(lambda: gateway.call(address, secret=secret).status == 401)
        wait_until(lambda: gateway.call(address).status == 503)
        assert "is disabled" in gateway.call(address).document["detail"]


def test_a_key_that_is_revoked_while_the_body_arrives_is_refused(
    gateway: Gateway,
) -> None:
    secret = key(name="shop")
    with endpoint_of(answering(ok())) as (endpoint, server):
        address = f"/gateway/{endpoint}/"
        head = (
            f"POST {address} HTTP/1.1\nHost: x\nX-Poisonweb-Key: {secret}\n"
            "Content-Length: 10\nConnection: close\n\n"
        )
        with gateway.open(head, b"a q") as sock:
            # Its head is accepted before the key ends.
            wait_until(lambda: ApiKey.objects.get(name="shop").last_used_at)
            revoke_api_key(name="shop", actor=Actor.system("test"), now=clock.now())
            wait_until(lambda: gateway.call(address, secret=secret).status == 401)
            calls = len(server.requests)
            sock.sendall(b"uote IB")
            assert sock.recv(1000).startswith(b"HTTP/1.1 401 ")

        assert len(server.requests) == calls


def test_a_key_has_a_number_of_calls_a_minute() -> None:
    with (
        running_gateway(POISONWEB_GATEWAY_CALLS_PER_MINUTE=2) as gateway,
        endpoint_of(answering(ok())) as (endpoint, _),
        endpoint_of(answering(ok())) as (another, _),
    ):
        address = f"/gateway/{endpoint}/"
        answers = [gateway.call(address) for _ in range(3)]
        others = [
            gateway.call(f"/gateway/{another}/"),
            gateway.call(address, secret=key()),
        ]

    assert [answer.status for answer in answers] == [200, 200, 429]
    assert 1 <= int(answers[2].header("retry-after") or 0) <= 31
    assert [answer.status for answer in others] == [200, 200]


def test_too_many_calls_at_once_are_refused(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "MOST_CALLS_OF_ENDPOINT", 1)
    opened = threading.Event()

    def answer_when_opened(visit: Visit, _: bytes) -> None:
        assert opened.wait(60)
        visit.send(ok())

    with (
        endpoint_of(answer_when_opened) as (endpoint, server),
        endpoint_of(answering(ok())) as (another, _),
    ):
        address = f"/gateway/{endpoint}/"
        first = threading.Thread(target=gateway.call, args=(address,))
        first.start()
        wait_until(lambda: server.requests)
        second = gateway.call(address)
        other = gateway.call(f"/gateway/{another}/")
        opened.set()
        first.join()
        wait_until(lambda: gateway.call(address).status == 200)

    assert (second.status, second.header("retry-after")) == (503, "1")
    assert other.status == 200
