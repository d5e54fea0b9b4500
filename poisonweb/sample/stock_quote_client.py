"""A client of the article: it asks for quotes of stocks through the gateway.

While the service is up it gets the quote. While the service is away it gets a SOAP
fault, or problem+json, that names a delivery; then it follows that delivery until the
service has answered it.
"""

from __future__ import annotations

import http.client
import json
import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from xml.etree import ElementTree as ET

from poisonweb.sample.stock_quote_service import JSON_PATH, SERVICES, SOAP_PATH

log = logging.getLogger(__name__)

ENDPOINT = "stock-quote"
SYMBOLS = ("WSO2", "IBM", "MSFT", "SUN")
MOST_FOLLOWED = 100
LONGEST_ANSWER = 64 * 1024
CALL_SECONDS = 30.0
_SOAP = (
    '<soap:Envelope xmlns:soap="http://schemas.xmlsoap.org/soap/envelope/"><soap:Body>'
    f'<m:getQuote xmlns:m="{SERVICES}"><m:request><m:symbol>{{symbol}}</m:symbol>'
    "</m:request></m:getQuote></soap:Body></soap:Envelope>"
)
UNFINISHED = ("waiting", "trying", "forwarding")


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewayAnswer:
    status: int
    body: bytes

    @property
    def delivery_id(self) -> str:
        """Parse the delivery's id from the gateway's refusal of a sample call.

        Return "" without one.
        """
        if self.body.startswith(b"{"):
            return str(json.loads(self.body).get("delivery", ""))
        try:
            tree = ET.fromstring(self.body)  # noqa: S314 - of our own gateway
        except ET.ParseError:
            return ""
        ids = (node.text for node in tree.iter() if node.tag.endswith("}delivery"))
        return next(ids, None) or ""


# Calls the gateway: method, path, headers and body.
Call = Callable[[str, str, Mapping[str, str], bytes], GatewayAnswer]


class StockQuoteClient:
    """Ask for one quote after another, as SOAP and as JSON in turns."""

    def __init__(
        self, call: Call, *, stop: threading.Event, every: float = 2.0
    ) -> None:
        self._call = call
        self._stop = stop
        self._every = every
        self.followed: list[str] = []  # deliveries, the oldest first

    def run(self) -> None:
        for number, symbol in enumerate(cycle(SYMBOLS)):
            if self._stop.is_set():
                return
            try:
                self.ask(symbol, as_soap=number % 2 == 0)
                self.follow()
            except (OSError, http.client.HTTPException) as trouble:
                log.info("the gateway is away: %s", trouble)
            self._stop.wait(self._every)

    def ask(self, symbol: str, *, as_soap: bool) -> None:
        """Ask the gateway for a made-up stock quote.

        Remember the delivery of a call that failed.
        """
        if as_soap:
            answer = self._call(
                "POST",
                f"/gateway/{ENDPOINT}{SOAP_PATH}",
                {
                    "Content-Type": "text/xml",
                    "SOAPAction": '"urn:getQuote"',
                    # So it may be tried again although it may have arrived.
                    "Idempotency-Key": str(uuid.uuid4()),
                },
                _SOAP.format(symbol=symbol).encode(),
            )
        else:
            path = f"/gateway/{ENDPOINT}{JSON_PATH}{symbol}"
            answer = self._call("GET", path, {}, b"")
        if answer.status == http.client.OK:
            return
        if answer.delivery_id and len(self.followed) < MOST_FOLLOWED:
            self.followed.append(answer.delivery_id)
        log.info(
            "no quote of %s now (HTTP %d): delivery %s",
            symbol,
            answer.status,
            answer.delivery_id or "was not stored",
        )

    def follow(self) -> None:
        """Ask the gateway about deliveries of the sample's failed quote calls.

        Forget those that are finished.
        """
        for delivery in list(self.followed):
            answer = self._call("GET", f"/gateway/-/deliveries/{delivery}", {}, b"")
            state = json.loads(answer.body).get("state", "gone")
            if state not in UNFINISHED:
                self.followed.remove(delivery)
                log.info("delivery %s is %s", delivery, state)


def calls_to(port: int, key_file: Path) -> Call:
    """Return a function by which the sample calls the gateway at this port.

    It reads the current API key at each call.
    """

    def call(
        method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> GatewayAnswer:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CALL_SECONDS)
        key = key_file.read_text(encoding="ascii")
        try:
            connection.request(
                method, path, body or None, {**headers, "X-Poisonweb-Key": key}
            )
            answer = connection.getresponse()
            return GatewayAnswer(status=answer.status, body=answer.read(LONGEST_ANSWER))
        finally:
            connection.close()

    return call
