"""The back end of the article: a service that quotes stocks, and is away at times.

It answers with the price of a stock, as SOAP (`/SimpleStockQuoteService`) and as JSON
(`/quotes/<symbol>`). Every minute it is away for some seconds: then its port refuses
connections.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from xml.etree import ElementTree as ET

LOOPBACK = "127.0.0.1"
SOAP_PATH, JSON_PATH = "/SimpleStockQuoteService", "/quotes/"
SERVICES = "http://services.samples"
ENVELOPES = (
    "http://schemas.xmlsoap.org/soap/envelope/",
    "http://www.w3.org/2003/05/soap-envelope",
)
LONGEST_REQUEST = 64 * 1024
_SYMBOL = re.compile(r"[A-Za-z0-9.-]{1,12}")


class NoQuote(Exception):
    """The request names no symbol of a stock."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quote:
    symbol: str
    cents: int

    @classmethod
    def of(cls, symbol: str) -> Quote:
        """Return the made-up price of a stock, which its symbol alone decides.

        Raise NoQuote for an invalid symbol.
        """
        if not _SYMBOL.fullmatch(symbol):
            raise NoQuote("Give a symbol of up to 12 letters, digits, dots or hyphens.")
        digest = hashlib.sha256(symbol.upper().encode()).digest()
        return cls(symbol=symbol.upper(), cents=100 + int.from_bytes(digest[:2]))

    @property
    def price(self) -> str:
        return f"{self.cents // 100}.{self.cents % 100:02}"


def answer_soap(body: bytes) -> bytes:
    """Answer a SOAP request for a made-up stock quote, in its version of SOAP.

    Raise NoQuote for an unusable request.
    """
    try:
        # Decoded first: in another encoding a doctype would not be noticed.
        text = body.decode("utf-8")
        if "<!DOCTYPE" in text:
            raise NoQuote("A SOAP envelope has no doctype.")
        envelope = ET.fromstring(text)  # noqa: S314 - no doctype, so no entities
    except (UnicodeDecodeError, ET.ParseError):
        raise NoQuote("The request is no XML in UTF-8.") from None
    namespace = envelope.tag.removeprefix("{").partition("}")[0]
    if namespace not in ENVELOPES:
        raise NoQuote("The request is no SOAP envelope.")
    symbols = (node.text for node in envelope.iter() if _is_symbol(node))
    quote = Quote.of(next(symbols, None) or "")
    answer = ET.Element(f"{{{namespace}}}Envelope")
    content = ET.SubElement(answer, f"{{{namespace}}}Body")
    response = ET.SubElement(content, f"{{{SERVICES}}}getQuoteResponse")
    ET.SubElement(response, f"{{{SERVICES}}}symbol").text = quote.symbol
    ET.SubElement(response, f"{{{SERVICES}}}last").text = quote.price
    return ET.tostring(answer)


def answer_json(symbol: str) -> bytes:
    """Answer a request for a made-up stock quote as JSON.

    Raise NoQuote for an invalid symbol.
    """
    quote = Quote.of(symbol)
    return json.dumps({"symbol": quote.symbol, "last": quote.price}).encode()


def _is_symbol(node: ET.Element) -> bool:
    return node.tag.rpartition("}")[2] == "symbol"


class QuoteHandler(BaseHTTPRequestHandler):
    timeout = 10.0
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.startswith(JSON_PATH):
            self._answer("application/json", answer_json, self.path[len(JSON_PATH) :])
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path != SOAP_PATH:
            self.send_error(HTTPStatus.NOT_FOUND)
        elif not length.isdecimal() or int(length) > LONGEST_REQUEST:
            self.send_error(HTTPStatus.LENGTH_REQUIRED)
        else:
            body = self.rfile.read(int(length))
            kind = self.headers.get_content_type()
            self._answer(f"{kind}; charset=utf-8", answer_soap, body)

    def _answer(self, kind: str, answer: Any, request: Any) -> None:
        try:
            status, body = HTTPStatus.OK, answer(request)
        except NoQuote as refusal:
            status, kind, body = (
                HTTPStatus.BAD_REQUEST,
                "text/plain",
                str(refusal).encode(),
            )
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Write no log line for a request of a made-up stock quote."""


class QuoteServer(ThreadingHTTPServer):
    daemon_threads = True


class StockQuoteService:
    """Listen, be away, and listen again at the same port, until it stops."""

    def __init__(
        self,
        *,
        port: int,
        stop: threading.Event,
        seconds_up: float = 45.0,
        seconds_down: float = 15.0,
    ) -> None:
        self._port = port
        self._seconds_up = seconds_up
        self._seconds_down = seconds_down
        self._stop = stop

    def run(self) -> None:
        while not self._stop.is_set():
            self._serve()
            self._stop.wait(self._seconds_down)

    def _serve(self) -> None:
        """Answer requests for the sample's stock quotes until an outage begins.

        Then break connections.
        """
        with QuoteServer((LOOPBACK, self._port), QuoteHandler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            self._stop.wait(self._seconds_up)
            server.shutdown()
            thread.join()
