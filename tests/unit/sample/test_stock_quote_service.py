"""The service of the article and its client, without the gateway between them."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from poisonweb.embedded.free_ports import LOOPBACK, free_port
from poisonweb.sample import stock_quote_client
from poisonweb.sample.stock_quote_client import GatewayAnswer, StockQuoteClient
from poisonweb.sample.stock_quote_service import (
    ENVELOPES,
    SERVICES,
    SOAP_PATH,
    NoQuote,
    Quote,
    StockQuoteService,
    answer_json,
    answer_soap,
)
from tests.waiting import wait_until

DELIVERY = "01a21862-9d29-7000-9408-6bd6de010cf4"
FAULT = (
    '<e:Envelope xmlns:e="urn:e"><d:delivery xmlns:d="urn:d">'
    f"{DELIVERY}</d:delivery></e:Envelope>"
).encode()


def envelope(namespace: str, symbol: str) -> bytes:
    return (
        f'<s:Envelope xmlns:s="{namespace}"><s:Body><m:getQuote xmlns:m="{SERVICES}">'
        f"<m:request><m:symbol>{symbol}</m:symbol></m:request></m:getQuote></s:Body>"
        "</s:Envelope>"
    ).encode()


@pytest.mark.parametrize("namespace", ENVELOPES)
def test_a_quote_comes_in_the_version_of_its_request(namespace: str) -> None:
    tree = ET.fromstring(answer_soap(envelope(namespace, "ibm")))

    assert tree.tag == f"{{{namespace}}}Envelope"
    [last] = tree.iter(f"{{{SERVICES}}}last")
    assert last.text == Quote.of("IBM").price


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"no xml", b"<a/>", envelope(ENVELOPES[0], "a b")),
        b'<!DOCTYPE a [<!ENTITY b "c">]>' + envelope(ENVELOPES[0], "IBM"),
        f"<!DOCTYPE a>{envelope(ENVELOPES[0], 'IBM').decode()}".encode("utf-16"),
    ],
)
def test_what_asks_for_no_quote_is_refused(body: bytes) -> None:
    with pytest.raises(NoQuote):
        answer_soap(body)


def test_the_service_is_away_and_back_at_the_same_port() -> None:
    port, stop = free_port(), threading.Event()
    service = StockQuoteService(port=port, seconds_up=0.2, seconds_down=0.2, stop=stop)
    looks: list[bool] = []

    def changes() -> int:
        looks.append(is_answered(port))
        return sum(old != new for old, new in pairwise(looks))

    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        wait_until(lambda: changes() >= 4)
    finally:
        stop.set()
        thread.join()
    assert not is_answered(port)


def is_answered(port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=10)
    try:
        connection.request("GET", "/quotes/IBM")
        return connection.getresponse().read() == answer_json("IBM")
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class FakeGateway:
    """Answers calls from a list, and records their paths."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        self.answers = list(answers)
        self.paths: list[str] = []
        self.keys: list[str] = []

    def __call__(
        self, method: str, path: str, headers: Mapping[str, str], _body: bytes
    ) -> GatewayAnswer:
        self.paths.append(path)
        if method == "POST":
            self.keys.append(headers["Idempotency-Key"])
        status, body = self.answers.pop(0)
        return GatewayAnswer(status=status, body=body)


@pytest.mark.parametrize(
    "refusal", [FAULT, json.dumps({"delivery": DELIVERY}).encode()]
)
def test_a_client_follows_what_failed_until_it_succeeded(
    refusal: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    gateway = FakeGateway(
        (500, refusal), (200, b'{"state": "waiting"}'), (200, b'{"state": "delivered"}')
    )
    client = StockQuoteClient(gateway, stop=threading.Event(), every=0)

    client.ask("IBM", as_soap=True)
    assert len(gateway.keys) == 1, "else a POST is not tried again in doubt"
    client.follow()
    assert client.followed == [DELIVERY]
    client.follow()

    assert client.followed == []
    status = f"/gateway/-/deliveries/{DELIVERY}"
    call = f"/gateway/{stock_quote_client.ENDPOINT}{SOAP_PATH}"
    assert gateway.paths == [call, status, status]
    assert f"delivery {DELIVERY} is delivered" in caplog.text


def test_a_client_that_gets_its_quote_follows_nothing() -> None:
    gateway = FakeGateway((200, answer_json("IBM")))
    client = StockQuoteClient(gateway, stop=threading.Event(), every=0)

    client.ask("IBM", as_soap=False)
    client.follow()

    assert gateway.paths == ["/gateway/stock-quote/quotes/IBM"]
