"""Requests to an Azure in trouble, or to another service."""

from __future__ import annotations

import base64
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from xml.etree import ElementTree

import pytest

from apps.brokers.adapter_contract import Outbound, OutcomeKind
from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.adapters.azure_queue import azure_http_client
from apps.brokers.adapters.azure_queue import reader as azure_reader
from apps.brokers.adapters.azure_queue.account import AzureAccount
from apps.brokers.adapters.azure_queue.adapter import ADAPTER
from apps.brokers.adapters.azure_queue.azure_http_client import AzureRejected, AzureWire
from apps.brokers.errors import MaybeSent, NotSent
from apps.core.errors import Unavailable
from tests.waiting import wait_until

SECRET = base64.b64encode(b"s3cret! s3cret! s3cret!").decode()
SIGNATURE = "sv=2024-11-04&sig=s3cret%2Bs3cret%3D"
# As Azure writes it, with a byte order mark.
NO_MESSAGES = b"\xef\xbb\xbf<?xml version='1.0' encoding='utf-8'?><QueueMessagesList/>"
MADE = b"""<QueueMessagesList><QueueMessage><MessageId>m1</MessageId>
<InsertionTime>Fri, 20 Nov 2026 12:00:00 GMT</InsertionTime></QueueMessage>
</QueueMessagesList>"""
LONGEST_HANG = 60.0
BUSY = b"<Error><Code>ServerBusy</Code><Message>Slow down.\nTime:x</Message></Error>"


class Pretender(ThreadingHTTPServer):
    """Server that answers every request alike and records the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.status, self.body = 200, NO_MESSAGES
        self.refusing = ""
        self.hangs = False
        self.requests: list[str] = []
        self.last_body = b""

    @property
    def url(self) -> str:
        endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        return f"QueueEndpoint={endpoint};AccountName=acme1;AccountKey={SECRET}"

    @property
    def signed_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}?{SIGNATURE}"

    def say(self, status: int, body: bytes = b"") -> None:
        self.status, self.body = status, body


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Pretender

    def do_POST(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self.server.last_body = self.rfile.read(length)
        self.server.requests.append(f"{self.command} {self.path}")
        if self.server.hangs:
            self.connection.settimeout(LONGEST_HANG)
            with suppress(OSError):
                self.rfile.read(1)  # until the client gives up
            self.close_connection = True
            return
        self.send_response(self.server.status)
        self.send_header("x-ms-version", "2026-02-06")
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing on the terminal."""


@pytest.fixture
def pretender() -> Iterator[Pretender]:
    with Pretender() as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (503, BUSY, NotSent),
        (429, b"", NotSent),
        (500, b"<Error><Code>InternalError</Code></Error>", MaybeSent),
        (504, b"<html>", MaybeSent),
        (408, b"", MaybeSent),
        (403, b"<Error><Code>AuthenticationFailed</Code></Error>", AzureRejected),
        (302, b"", AzureRejected),
        (404, b"\0\xff", AzureRejected),
        (200, b"<html>sign in here", MaybeSent),
        (200, b'<!DOCTYPE a [<!ENTITY b "c">]><QueueMessagesList/>', MaybeSent),
        (200, b"<a><QueueMessage/></a>", MaybeSent),
        (200, b"", MaybeSent),
    ],
)
def test_each_answer_raises_its_error(
    pretender: Pretender, status: int, body: bytes, error: type[Exception]
) -> None:
    pretender.say(status, body)
    azure_calls = AzureWire(AzureAccount.parse(pretender.url))

    with pytest.raises(error) as raised:
        azure_calls.peek("orders", count=1)

    assert "\n" not in str(raised.value)
    assert len(pretender.requests) == 1, "one try, and no redirect is followed"


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (201, MADE, OutcomeKind.SENT),
        (201, b"", OutcomeKind.UNKNOWN),
        (201, NO_MESSAGES, OutcomeKind.UNKNOWN),
        (500, b"", OutcomeKind.UNKNOWN),
        (404, b"<Error><Code>QueueNotFound</Code></Error>", OutcomeKind.REFUSED),
        (302, b"", OutcomeKind.REFUSED),
    ],
)
def test_sent_is_only_what_azure_confirms(
    pretender: Pretender, status: int, body: bytes, kind: OutcomeKind
) -> None:
    pretender.say(status, body)
    publisher = ADAPTER.publisher(BrokerSettings(url=pretender.url))

    outcomes = publisher.publish([outbound()] * 3)
    publisher.close()

    assert [outcome.kind for outcome in outcomes] == [kind] * 3
    assert all(o.detail for o in outcomes) is (kind is not OutcomeKind.SENT)


@pytest.mark.parametrize("text", ["one\rtwo\r\n", " <&>]]>\"' \t", "\u0085\u2028", ""])
def test_an_xml_parser_reads_the_very_text(pretender: Pretender, text: str) -> None:
    pretender.say(201, MADE)
    azure_calls = AzureWire(AzureAccount.parse(pretender.url))

    azure_calls.put("orders", text)
    azure_calls.close()

    # XML turns a bare carriage return into a line feed, which Azurite does not.
    read = ElementTree.fromstring(pretender.last_body).findtext("MessageText")
    assert read == text


def test_publish_raises_unavailable_when_all_were_turned_away(
    pretender: Pretender,
) -> None:
    pretender.say(503, BUSY)
    publisher = ADAPTER.publisher(BrokerSettings(url=pretender.url))
    refused = Outbound(topic="No Queue", body=b"", headers=())

    with pytest.raises(Unavailable, match=r"503 ServerBusy Slow down\. Time:x"):
        publisher.publish([outbound(), refused, outbound()])

    publisher.close()


def test_one_timeout_ends_a_window_when_azure_hangs(
    pretender: Pretender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure_http_client, "REPLY_SECONDS", 0.3)
    pretender.hangs = True
    publisher = ADAPTER.publisher(BrokerSettings(url=pretender.url))
    began = time.monotonic()

    outcomes = publisher.publish([outbound()] * 200)
    waited = time.monotonic() - began
    publisher.close()

    assert waited < 20
    # A busy server has not read them yet.
    wait_until(lambda: pretender.requests)
    kinds = Counter(outcome.kind for outcome in outcomes)
    assert set(kinds) == {OutcomeKind.UNKNOWN, OutcomeKind.UNSENT}
    # Requested sends may be done; the others were never requested.
    assert len(pretender.requests) <= kinds[OutcomeKind.UNKNOWN] <= 64


class ReaderClock:
    """A time that passes only in sleeps."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ReaderClock:
    clock = ReaderClock()
    monkeypatch.setattr(azure_reader, "time", clock)
    return clock


def test_an_empty_queue_is_polled_less_and_less_often(
    pretender: Pretender, clock: ReaderClock
) -> None:
    options = {"maxPollingInterval": "00:00:10"}
    topic = TopicSettings(topic="orders", options=options)
    reader = ADAPTER.dead_letter_reader(BrokerSettings(url=pretender.url), topic)

    for _ in range(3):
        reader.read(limit=1, wait=0.5)
    reader.close()

    # Without jitter: after 0, 0.1, 0.3 and 0.7 seconds, and then not before 1.5.
    assert 3 <= len(pretender.requests) <= 6


def test_an_empty_queue_is_polled_at_its_max_polling_interval(
    pretender: Pretender, clock: ReaderClock
) -> None:
    options = {"maxPollingInterval": 0.1}
    topic = TopicSettings(topic="orders", options=options)
    reader = ADAPTER.dead_letter_reader(BrokerSettings(url=pretender.url), topic)

    reader.read(limit=1, wait=1)
    reader.close()

    assert 7 <= len(pretender.requests) <= 14


def test_logs_and_errors_never_hold_the_signature(
    pretender: Pretender, caplog: pytest.LogCaptureFixture
) -> None:
    pretender.say(
        400, b"<Error><Code>X</Code><Message>a?sig=s3cret&b</Message></Error>"
    )
    azure_calls = AzureWire(AzureAccount.parse(pretender.signed_url))

    with caplog.at_level(logging.DEBUG), pytest.raises(AzureRejected) as raised:
        azure_calls.peek("orders", count=1)

    assert "sig=s3cret" in pretender.requests[0]
    assert "/orders/messages" in caplog.text
    assert "s3cret" not in caplog.text + str(raised.value)


def test_the_error_of_an_absent_azure_holds_no_secret() -> None:
    for url in (
        f"http://127.0.0.1:1/?{SIGNATURE}",
        f"https://nowhere.test/?{SIGNATURE}",
        f"QueueEndpoint=http://127.0.0.1:1;AccountName=acme1;AccountKey={SECRET}",
    ):
        publisher = ADAPTER.publisher(BrokerSettings(url=url))

        with pytest.raises(Unavailable, match="takes no connection") as raised:
            publisher.publish([outbound()])

        assert "s3cret" not in str(raised.value)
        assert SECRET not in str(raised.value)
        assert raised.value.__cause__ is None


def outbound() -> Outbound:
    return Outbound(topic="orders", body=b"body", headers=())
