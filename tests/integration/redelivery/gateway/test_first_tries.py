"""First tries of the gateway: what callers get, and what is stored."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from apps.core import clock
from apps.redelivery.gateway import first_tries, success_counts_and_sender_notices
from apps.redelivery.models import (
    Attempt,
    CallCount,
    Delivery,
    DeliveryBody,
    EndpointActivity,
)
from apps.redelivery.services.delivery_endings import headers_of
from tests.integration.redelivery import endpoint_and_delivery_builders as builders
from tests.integration.redelivery.gateway.gateway_in_a_thread import (
    Answer,
    Gateway,
    endpoint_of,
    key,
    ok,
    running_gateway,
)
from tests.unit.redelivery.scripted_back_end import (
    END,
    LOOPBACK,
    Visit,
    answering,
    closing,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

DOWN = answering(ok(b"no luck", b"X-Why: none", status=b"503 Down"))


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with running_gateway() as running:
        yield running


TEXT = "GET /gateway/{endpoint}/ {version}\nHost: x\nX-Poisonweb-Key: KEY\n\n"
HALF = 2 * first_tries.HELD_ANSWER
HALF_AN_ANSWER = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"%x\r\n%s\r\n" % (HALF, b"x" * HALF)
)


def receive_all_but_the_end(sock: socket.socket) -> None:
    """Receive what the gateway passes on of `HALF_AN_ANSWER`."""
    count = 0
    while count < HALF:
        piece = sock.recv(2**20)
        assert piece, "the answer ended"
        count += piece.count(b"x")


class GatedScript:
    """A script that answers once it is opened."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._opened = threading.Event()

    def open(self) -> None:
        self._opened.set()

    def __call__(self, visit: Visit, _: bytes) -> None:
        assert self._opened.wait(60)
        visit.send(self._answer)


def hang(visit: Visit, _: bytes) -> object:
    """Answer nothing until the caller hangs up."""
    visit.has_hung_up()
    return END


def test_a_first_try_goes_on_though_the_server_cancels_its_tasks(
    gateway: Gateway,
) -> None:
    gate = GatedScript(ok(b"at last"))
    answers = list[Answer]()
    with endpoint_of(gate) as (endpoint, back_end):
        caller = threading.Thread(
            target=lambda: answers.append(gateway.call(f"/gateway/{endpoint}/"))
        )
        caller.start()
        wait_until(lambda: back_end.requests)
        for task in gateway.server.server_state.tasks:
            task.get_loop().call_soon_threadsafe(task.cancel)
        gate.open()
        caller.join()

    assert [answer.body for answer in answers] == [b"at last"]


def test_a_success_is_passed_on_and_leaves_a_count(gateway: Gateway) -> None:
    script = answering(
        ok(b"\x00\xff", b"X-Twice: a", b"X-Twice: b", status=b"201 Made")
    )
    with endpoint_of(script, base_path="/base") as (endpoint, server):
        answer = gateway.call(
            f"/gateway/{endpoint}/quote/%20?x=%41",
            method="POST",
            body=b"<quote/>",
            Authorization="Basic b2Y6YmFja2VuZA==",
            X_Poisonweb_Other="1",
        )
        [request] = server.requests

    assert (answer.status, answer.body) == (201, b"\x00\xff")
    assert [v for n, v in answer.headers if n == "X-Twice"] == ["a", "b"]
    assert answer.header("content-security-policy") == "sandbox"
    assert request.startswith(b"POST /base/quote/%20?x=%41 HTTP/1.1\r\n")
    assert request.endswith(b"\r\n\r\n<quote/>")
    assert b"\r\nAuthorization: Basic b2Y6YmFja2VuZA==\r\n" in request
    assert gateway.secret.encode() not in request
    assert b"other" not in request.lower()
    wait_until(lambda: CallCount.objects.filter(succeeded_at_first=1).exists())
    assert not Delivery.objects.exists()


def test_a_success_counts_though_its_answer_cannot_be_passed_on(
    gateway: Gateway,
) -> None:
    with endpoint_of(answering(ok(b"", b"X-Note: a\x01b"))) as (endpoint, _):
        answer = gateway.call(f"/gateway/{endpoint}/")

    assert answer.status == 500
    wait_until(lambda: CallCount.objects.filter(succeeded_at_first=1).exists())


def test_a_failure_is_stored_once_and_its_caller_told_how_it_goes_on(
    gateway: Gateway,
) -> None:
    with endpoint_of(DOWN, retries=2) as (endpoint, server):
        answer = gateway.call(
            f"/gateway/{endpoint}/a?b",
            method="POST",
            body=b"\x00<quote/>",
            Authorization=f"Bearer {gateway.secret}",
            X_Poisonweb_Other="1",
            Connection="close, X-Hop",
            X_Hop="1",
            X_Odd_Case="\xff",
        )
        [request] = server.requests

    problem = answer.document
    assert (answer.status, answer.header("content-type")) == (
        502,
        "application/problem+json",
    )
    assert problem["detail"] == (
        "The back end answered 503. The request is stored and will be tried again."
    )
    delivery = Delivery.objects.get()
    due = delivery.due_at.isoformat()
    plan = {"retries_left": 2, "next_due": due, "interval": 3.0, "expires_at": None}
    address = f"/gateway/-/deliveries/{delivery.pk}"
    assert problem == problem | {
        "delivery": str(delivery.pk),
        "kept": True,
        "state": "waiting",
        "retry_count": 1,
        "plan": plan,
        "status_address": address,
    }
    assert f"\r\nx-poisonweb-delivery: {delivery.pk}\r\n".encode() in request
    assert f"\r\nIdempotency-Key: {delivery.pk}\r\n".encode() in request
    assert (delivery.method, bytes(delivery.path)) == ("POST", b"/a?b")
    assert (delivery.idempotency_key, delivery.is_repeatable) == (
        problem["delivery"],
        False,
    )
    names = {name for name, _ in headers_of(delivery)}
    assert {b"X-Odd-Case", b"x-poisonweb-hops"} <= names
    assert {name.lower() for name in names}.isdisjoint(
        {b"authorization", b"x-hop", b"x-poisonweb-other", b"idempotency-key", b"host"}
    )
    assert bytes(DeliveryBody.objects.get().content) == b"\x00<quote/>"
    attempt = Attempt.objects.get()
    assert (attempt.outcome, attempt.status) == ("failed", 503)
    assert bytes(attempt.answer) == b"no luck"
    assert CallCount.objects.get().failed == 1

    status = gateway.call(address)
    assert (status.status, status.document["retry_count"]) == (200, 1)
    assert status.document["attempts"][0]["status"] == 503
    assert b"no luck" not in status.body
    assert gateway.call(address, secret=key()).status == 404
    assert gateway.call(address, method="DELETE").status == 405
    for spelling in (f"{{{delivery.pk}}}", delivery.pk.hex, f"urn:uuid:{delivery.pk}"):
        assert gateway.call(f"/gateway/-/deliveries/{spelling}").status == 404


@pytest.mark.parametrize(
    ("headers", "version", "content_type", "code"),
    [
        (
            {"Content_Type": "text/xml; charset=utf-8", "SOAPAction": "urn:q"},
            "http://schemas.xmlsoap.org/soap/envelope/",
            "text/xml; charset=utf-8",
            b"<faultcode>soap:Server</faultcode>",
        ),
        (
            {"Content_Type": "application/soap+xml; action=q"},
            "http://www.w3.org/2003/05/soap-envelope",
            "application/soap+xml; charset=utf-8",
            b"<env:Value>env:Receiver</env:Value>",
        ),
    ],
)
def test_a_failed_soap_call_gets_a_fault_of_its_version(
    gateway: Gateway,
    headers: dict[str, str],
    version: str,
    content_type: str,
    code: bytes,
) -> None:
    envelope = f'<e:Envelope xmlns:e="{version}"><e:Body/></e:Envelope>'.encode()
    with endpoint_of(DOWN) as (endpoint, _):
        answer = gateway.call(
            f"/gateway/{endpoint}", method="POST", body=envelope, **headers
        )

    delivery = Delivery.objects.get()
    assert (answer.status, answer.header("content-type")) == (500, content_type)
    assert code in answer.body
    assert b"The back end answered 503. The request is stored" in answer.body
    assert f":delivery>{delivery.pk}<".encode() in answer.body
    assert f'="{version}"'.encode() in answer.body


def test_what_broke_may_have_arrived_and_is_repeated_only_if_it_may(
    gateway: Gateway,
) -> None:
    with endpoint_of(closing(b"HTTP/1.1 200 OK\r\nContent-Le")) as (endpoint, _):
        address = f"/gateway/{endpoint}/"
        put = gateway.call(address, method="PUT", body=b"1")
        post = gateway.call(address, method="POST", body=b"1")
        with_key = gateway.call(
            address, method="POST", body=b"1", Idempotency_Key="order-13"
        )

    answers = (put, post, with_key)
    assert [answer.status for answer in answers] == [502, 502, 502]
    states = [answer.document["state"] for answer in answers]
    assert states == ["waiting", "given_up", "waiting"]
    assert post.document["plan"]["retries_left"] == 0
    assert "waits for a decision" in post.document["detail"]
    assert {attempt.outcome for attempt in Attempt.objects.all()} == {"unknown"}
    delivery = Delivery.objects.get(pk=with_key.document["delivery"])
    assert delivery.idempotency_key == "order-13"
    assert (b"Idempotency-Key", b"order-13") in headers_of(delivery)


def test_a_back_end_that_is_not_there_failed_and_a_time_out_is_unknown(
    gateway: Gateway,
) -> None:
    gate = GatedScript(ok(b"late"))
    with endpoint_of(gate, attempt_timeout=2.0) as (endpoint, _):
        late = gateway.call(f"/gateway/{endpoint}/")
        gate.open()
        wait_until(lambda: Attempt.objects.filter(late_status=200).exists())
        nowhere = builders.endpoint("nowhere", target=f"http://{LOOPBACK}:1")
    refused = gateway.call(f"/gateway/{nowhere}/", method="POST", body=b"1")

    assert (late.status, refused.status) == (504, 502)
    assert bytes(Attempt.objects.get(late_status=200).late_answer or b"") == b"late"
    assert refused.document["state"] == "waiting"
    outcomes = Attempt.objects.order_by("begun_at").values_list("outcome", flat=True)
    assert list(outcomes) == ["unknown", "failed"]


def test_a_first_try_goes_on_when_its_caller_hangs_up(gateway: Gateway) -> None:
    gate = GatedScript(ok(status=b"503 Down"))
    with endpoint_of(gate) as (endpoint, server):
        head = f"POST /gateway/{endpoint}/ HTTP/1.1\nHost: x\nX-Poisonweb-Key: KEY\n"
        sock = gateway.open(head + "Content-Length: 1\n\n", b"1")
        wait_until(lambda: server.requests)
        sock.close()
        gate.open()
        wait_until(Delivery.objects.exists)

    assert Attempt.objects.get().status == 503


def test_a_long_answer_is_streamed(gateway: Gateway) -> None:
    body = bytes(range(256)) * 4096 * 3
    with endpoint_of(answering(ok(body))) as (endpoint, _):
        answer = gateway.call(f"/gateway/{endpoint}/")

    assert (answer.status, answer.body == body) == (200, True)
    wait_until(lambda: CallCount.objects.filter(succeeded_at_first=1).exists())


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/1.0"])
def test_a_long_answer_that_breaks_off_breaks_the_callers_connection(
    gateway: Gateway, version: str
) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%s\r\n" % (3 * first_tries.MIB, b"x" * (3 * first_tries.MIB))
    with endpoint_of(closing(head, chunk)) as (endpoint, _):
        text = f"GET /gateway/{endpoint}/ {version}\nHost: x\nX-Poisonweb-Key: KEY\n\n"
        with gateway.open(text) as sock:
            received = b""
            with pytest.raises(ConnectionResetError):
                while data := sock.recv(2**20):
                    received += data
                pytest.fail("the answer looks like a whole one")

    wait_until(Attempt.objects.exists)
    attempt = Attempt.objects.get()
    assert received.startswith(b"HTTP/1.1 200 ")
    assert (attempt.outcome, attempt.status) == ("unknown", 200)
    assert attempt.is_answer_cut
    # A GET may be repeated.
    assert Delivery.objects.get().state == "waiting"


def test_an_answer_that_breaks_off_before_it_is_sent_is_a_failure(
    gateway: Gateway,
) -> None:
    script = closing(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
    with endpoint_of(script) as (endpoint, _):
        answer = gateway.call(f"/gateway/{endpoint}/", method="POST", body=b"1")

    assert (answer.status, answer.document["state"]) == (502, "given_up")


def test_an_open_breaker_costs_one_probe_and_a_success_closes_it(
    gateway: Gateway,
) -> None:
    with endpoint_of(DOWN, breaker_failures=2, breaker_interval=600) as (
        endpoint,
        server,
    ):
        address = f"/gateway/{endpoint}/"
        answers = [gateway.call(address) for _ in range(5)]
        calls = len(server.requests)
        activity = EndpointActivity.objects.filter(endpoint=endpoint)
        assert activity.get().failures_in_a_row == 2
        activity.update(open_until=clock.now() - timedelta(seconds=1))
        server.script = answering(ok())
        probes = [gateway.call(address).status for _ in range(2)]

    assert calls == 2
    assert [answer.status for answer in answers] == [502] * 5
    assert [answer.document["retry_count"] for answer in answers] == [1, 1, 0, 0, 0]
    assert "the back end was not called" in answers[-1].document["detail"]
    assert answers[-1].document["plan"]["retries_left"] == 2
    assert Attempt.objects.count() == 2
    assert probes == [200, 200]
    wait_until(lambda: activity.get().open_until is None)


def test_an_endpoint_is_called_by_its_number_at_once_and_the_rest_is_stored(
    gateway: Gateway,
) -> None:
    gate = GatedScript(ok())
    limits: dict[str, Any] = {
        "concurrency": 1,
        "attempt_timeout": 60,
        "client_timeout": 60.2,
    }
    with endpoint_of(gate, **limits, claim_timeout=90) as (endpoint, server):
        first = threading.Thread(target=gateway.call, args=(f"/gateway/{endpoint}/1",))
        first.start()
        wait_until(lambda: server.requests)
        second = gateway.call(f"/gateway/{endpoint}/2")
        calls = len(server.requests)
        gate.open()
        first.join()

    assert (second.status, calls) == (502, 1)
    assert "All 1 calls of its endpoint are in use" in second.document["detail"]
    assert second.document["retry_count"] == 0
    assert not Attempt.objects.exists()


def test_a_request_does_not_overtake_earlier_ones_of_its_order_key(
    gateway: Gateway,
) -> None:
    with endpoint_of(DOWN, order_header="X-Account") as (endpoint, server):
        address = f"/gateway/{endpoint}/"
        gateway.call(address, X_Account="7")
        server.script = answering(ok())
        later = gateway.call(address, X_Account="7")
        other = gateway.call(address, X_Account="8")

    assert (later.status, other.status) == (502, 200)
    assert "An earlier request of its order key waits" in later.document["detail"]
    keys = [bytes(each.order_key or b"") for each in Delivery.objects.all()]
    assert keys == [b"7", b"7"]


def test_a_stop_stores_what_back_ends_have_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("poisonweb.gateway.CUT_SECONDS", 0.2)
    with endpoint_of(
        hang, attempt_timeout=600, claim_timeout=900, client_timeout=900
    ) as (
        endpoint,
        server,
    ):
        with running_gateway() as gateway:
            connection_ = gateway.connect()
            connection_.request(
                "PUT",
                f"/gateway/{endpoint}/",
                body=b"1",
                headers={"X-Poisonweb-Key": gateway.secret},
            )
            wait_until(lambda: server.requests)
        answer: http.client.HTTPResponse = connection_.getresponse()
        problem = answer.read()
        connection_.close()

    assert answer.status == 502
    assert b"The gateway was stopped before the back end had answered." in problem
    assert Attempt.objects.get().outcome == "unknown"
    assert Delivery.objects.get().state == "waiting"


def test_an_answer_that_breaks_off_after_its_caller_left_is_stored(
    gateway: Gateway,
) -> None:
    half = GatedScript(b"")

    def script(visit: Visit, request: bytes) -> object:
        visit.send(HALF_AN_ANSWER)
        half(visit, request)
        return END

    with endpoint_of(script) as (endpoint, _):
        with gateway.open(TEXT.format(endpoint=endpoint, version="HTTP/1.1")) as sock:
            receive_all_but_the_end(sock)
        wait_until(lambda: not gateway.server.server_state.connections)
        half.open()
        wait_until(Delivery.objects.exists)

    assert Attempt.objects.get().outcome == "unknown"


@pytest.mark.parametrize("drips", [False, True])
def test_an_answer_whose_rest_does_not_come_in_time_is_unknown(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, *, drips: bool
) -> None:
    monkeypatch.setattr(first_tries, "STREAM_SECONDS", 1.0)
    is_over = threading.Event()

    def script(visit: Visit, _: bytes) -> object:
        visit.send(HALF_AN_ANSWER)
        with suppress(OSError):
            while not is_over.wait(0.001):
                visit.send(b"1\r\nx\r\n" * drips)
        return END

    with endpoint_of(script) as (endpoint, _):
        with gateway.open(TEXT.format(endpoint=endpoint, version="HTTP/1.1")) as sock:
            receive_all_but_the_end(sock)
            wait_until(Delivery.objects.exists)
        is_over.set()

    attempt = Attempt.objects.get()
    assert (attempt.outcome, attempt.status) == ("unknown", 200)
    assert not CallCount.objects.filter(succeeded_at_first__gt=0).exists()


def test_a_caller_that_does_not_take_its_answer_is_cut_and_nothing_is_tried_again(
    gateway: Gateway,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(first_tries, "STREAM_SECONDS", 0.5)
    monkeypatch.setattr(first_tries, "LAST_WRITE_SECONDS", 0.5)
    with (
        endpoint_of(answering(ok(b"x" * 2**26))) as (endpoint, _),
        gateway.open(TEXT.format(endpoint=endpoint, version="HTTP/1.1")),
    ):
        wait_until(lambda: "a caller took its answer too slowly" in caplog.text)
        wait_until(CallCount.objects.filter(succeeded_at_first=1).exists)

    assert not Delivery.objects.exists()


def test_a_stop_breaks_the_connection_of_a_caller_that_has_half_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("poisonweb.gateway.CUT_SECONDS", 0.2)

    def script(visit: Visit, request: bytes) -> object:
        visit.send(HALF_AN_ANSWER)
        return hang(visit, request)

    with endpoint_of(script) as (endpoint, _), ExitStack() as stack:
        with running_gateway() as gateway:
            text = TEXT.format(endpoint=endpoint, version="HTTP/1.0")
            sock = stack.enter_context(gateway.open(text))
            receive_all_but_the_end(sock)
        with pytest.raises(ConnectionResetError):
            sock.recv(1)

    assert Attempt.objects.get().outcome == "unknown"


def test_a_stop_before_a_request_was_written_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("poisonweb.gateway.CUT_SECONDS", 0.2)
    # It listens, but says nothing, so TLS does not begin.
    with (
        socket.create_server((LOOPBACK, 0)) as silent,
        ExitStack() as stack,
        running_gateway() as gateway,
    ):
        endpoint = builders.endpoint(
            "silent", target=f"https://{LOOPBACK}:{silent.getsockname()[1]}"
        )
        text = TEXT.format(endpoint=endpoint, version="HTTP/1.1")
        stack.enter_context(gateway.open(text))
        stack.enter_context(silent.accept()[0])

    attempt = Attempt.objects.get()
    assert (attempt.outcome, attempt.detail) == ("failed", first_tries.STOPPED)


def test_a_key_that_does_not_reach_the_back_end_makes_nothing_repeatable(
    gateway: Gateway,
) -> None:
    with endpoint_of(closing(b"HTTP/1.1 200 OK\r\nContent-Le")) as (endpoint, _):
        answer = gateway.call(
            f"/gateway/{endpoint}/",
            method="POST",
            body=b"1",
            Idempotency_Key="order-13",
            Connection="Idempotency-Key",
        )

    assert answer.document["state"] == "given_up"
    assert Delivery.objects.get().idempotency_key == answer.document["delivery"]


def test_senders_get_few_notices_of_many_deliveries(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(success_counts_and_sender_notices, "NOTICE_SECONDS", 1.0)
    with endpoint_of(DOWN, mode="async") as (endpoint, server):
        with connection.cursor() as cursor:
            cursor.execute("LISTEN poisonweb_deliveries")
        threads = [
            threading.Thread(
                target=gateway.call,
                args=(f"/gateway/{endpoint}/",),
                kwargs={"method": "POST", "body": b"1"},
            )
            for _ in range(30)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert connection.connection is not None
    notices = list(connection.connection.notifies(timeout=60, stop_after=1))
    notices += connection.connection.notifies(timeout=1)
    assert {notice.payload for notice in notices} == {str(endpoint.pk)}
    assert len(notices) < 30
    assert Delivery.objects.filter(attempts=0).count() == 30
    assert server.requests == []
