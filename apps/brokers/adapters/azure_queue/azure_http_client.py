"""Calls of Azure's queues over plain HTTP: one attempt each, without secrets in errors.

Azure's own client needs more than twice the processor time for a message, even without
its retries: see `docs/adr/0024-azure-queues-over-plain-http.md`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from email.utils import formatdate, parsedate_to_datetime
from typing import TypeVar
from urllib.parse import quote, urlencode
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from urllib3 import Timeout
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ReadTimeoutError,
)

from apps.brokers.adapters import http_pools_to_checked_addresses
from apps.brokers.adapters.azure_queue.account import AzureAccount
from apps.brokers.address_policy import Dial, usual_dial
from apps.brokers.errors import MaybeSent, NotSent, Rejected
from apps.core.errors import Unavailable
from apps.core.text_cleaning import one_line

VERSION = "2021-12-02"
# A lane keeps its connections while it lives, and there may be many lanes.
CONNECTIONS = 8
CONNECT_SECONDS = 5.0
REPLY_SECONDS = 20.0
LARGEST_PAGE = 32
QUEUES_PAGE = 5_000

# Overloaded, so it did nothing; and: in trouble, so it may have acted.
TURNED_AWAY = frozenset({429, 503})
IN_TROUBLE = frozenset({408, 500, 502, 504})

# These headers identify Azure; answers of other services are not quoted.
NOT_AZURE = b"<Message>What answers there is not Azure.</Message>"
OWN_HEADERS = ("x-ms-request-id", "x-ms-error-code", "x-ms-version")
_CODE = re.compile(rb"<Code>([A-Za-z]{1,100})</Code>")
_MESSAGE = re.compile(rb"<Message>([^<]{1,2000})")
_SIGNATURE = re.compile(r"sig=[^&\s\"']+")

T = TypeVar("T")
R = TypeVar("R")


class AzureTimeout(MaybeSent):
    """Azure did not answer in time, and is not likely to answer other calls."""


class AzureRejected(Rejected):
    """Azure refused the call; `code` is Azure's own name for the reason."""

    def __init__(self, *, status: int, code: str, about: str, words: str) -> None:
        super().__init__(f"Azure refuses {about}: {status} {code} {words}".strip())
        self.code = code

    @property
    def names_no_queue(self) -> bool:
        """Tell whether Azure refused a call because the queue does not exist."""
        return self.code == "QueueNotFound"

    @property
    def names_no_message(self) -> bool:
        """Tell whether Azure refused a call because a message is not ours any more.

        It was deleted, or another reader has it by now.
        """
        return self.code in {"MessageNotFound", "PopReceiptMismatch"}


@dataclass(frozen=True, kw_only=True, slots=True)
class AzureMessage:
    """A message in its queue; `receipt` is "" after a mere peek."""

    id: str
    text: str
    inserted_at: datetime
    dequeue_count: int
    receipt: str


@dataclass(frozen=True, slots=True)
class AzureReply:
    headers: Mapping[str, str]
    body: bytes

    def xml(self) -> ElementTree.Element:
        """Parse the body as XML; raise MaybeSent for an answer that is not Azure's."""
        # Azure never sends a DTD, so refuse one: its entities could expand.
        if b"<!DOCTYPE" in self.body:
            raise MaybeSent("What answers there is not Azure: it sends a DTD.")
        try:
            return ElementTree.fromstring(self.body)  # noqa: S314
        except ElementTree.ParseError:
            raise MaybeSent("What answers there is not Azure: it is no XML.") from None


class AzureWire:
    """Client for the queues of one account; it is thread-safe."""

    def __init__(
        self,
        account: AzureAccount,
        *,
        dial: Dial = usual_dial,
        connections: int = CONNECTIONS,
    ) -> None:
        self._account = account
        self._server = f"Azure at {account.host}:{account.port}"
        self._pool = http_pools_to_checked_addresses.pools(dial)[account.scheme](
            account.host,
            account.port,
            timeout=Timeout(connect=CONNECT_SECONDS, read=REPLY_SECONDS),
            maxsize=connections,
            block=True,
            retries=False,
        )
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="azure")

    @property
    def account_name(self) -> str:
        return self._account.name

    def map(self, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Call a function for each item in the Azure client's threads, in parallel.

        Returns the results in order.
        """
        if len(items) == 1:
            return [call(items[0])]
        return list(self._threads.map(call, items))

    def submit(self, call: Callable[[T], R], item: T) -> Future[R]:
        """Call a function in a thread of the Azure client; return the future."""
        return self._threads.submit(call, item)

    def close(self) -> None:
        """Close the connections to Azure; drop queued calls, let running ones end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._pool.close()

    # --- operations of the service

    def put(self, queue: str, text: str) -> AzureMessage:
        """Add a message that never expires to Azure's queue; return it with its id."""
        escaped = escape(text, {"\r": "&#13;"})
        body = f"<QueueMessage><MessageText>{escaped}</MessageText></QueueMessage>"
        query = {"messagettl": "-1"}
        reply = self._ask("POST", f"/{queue}/messages", query, body.encode())
        messages = _parse_messages(reply)
        if len(messages) != 1:
            raise MaybeSent("What answers there is not Azure: it names no message.")
        return messages[0]

    def get(self, queue: str, *, count: int, hidden_for: int) -> list[AzureMessage]:
        """Take a queue's first messages; hide them from others for so many seconds."""
        query = {"numofmessages": str(count), "visibilitytimeout": str(hidden_for)}
        return _parse_messages(self._ask("GET", f"/{queue}/messages", query))

    def peek(self, queue: str, *, count: int) -> list[AzureMessage]:
        """Return a queue's first visible messages and change nothing."""
        query = {"numofmessages": str(min(count, LARGEST_PAGE)), "peekonly": "true"}
        return _parse_messages(self._ask("GET", f"/{queue}/messages", query))

    def hide(self, queue: str, message: str, receipt: str, *, seconds: int) -> str:
        """Hide a message that we took from Azure for so many seconds.

        Returns its new receipt.
        """
        query = {"popreceipt": receipt, "visibilitytimeout": str(seconds)}
        reply = self._ask("PUT", f"/{queue}/messages/{quote(message, safe='')}", query)
        return reply.headers.get("x-ms-popreceipt", "")

    def delete(self, queue: str, message: str, receipt: str) -> None:
        """Delete a message that we took from Azure's queue, by its receipt."""
        query = {"popreceipt": receipt}
        self._ask("DELETE", f"/{queue}/messages/{quote(message, safe='')}", query)

    def depth(self, queue: str) -> int:
        """Count the messages of Azure's queue approximately, with the hidden ones."""
        reply = self._ask("GET", f"/{queue}", {"comp": "metadata"})
        return int(reply.headers.get("x-ms-approximate-messages-count", "0"))

    def create_queue(self, queue: str) -> None:
        """Create a queue at Azure; leave an existing one as it is."""
        self._ask("PUT", f"/{queue}", {})

    def queues(self, *, after: str = "") -> tuple[list[str], str]:
        """List a page of Azure's queues, and the marker of the next; "" at the end."""
        query = {"comp": "list", "maxresults": str(QUEUES_PAGE)}
        if after:
            query["marker"] = after
        listing = self._ask("GET", "/", query).xml()
        names = [name.text or "" for name in listing.iter("Name")]
        return names, listing.findtext("NextMarker") or ""

    def server(self) -> str:
        """Make Azure's cheapest request; return the name of the server that answers."""
        query = {"comp": "list", "maxresults": "1"}
        return self._ask("GET", "/", query).headers.get("server", "")

    # --- one request

    def _ask(
        self, method: str, path: str, query: Mapping[str, str], body: bytes = b""
    ) -> AzureReply:
        """Send a signed request to Azure; return the reply or raise its failure."""
        path = self._account.path + path
        headers = self._headers(method, path, query, body)
        url = f"{path}?{urlencode(query, quote_via=quote)}"
        if self._account.signature:
            url = f"{url}&{self._account.signature}"
        try:
            reply = self._pool.urlopen(
                method, url, body=body or None, headers=headers, redirect=False
            )
        # The text of these errors may hold the address, and that the signature.
        except (HTTPError, OSError) as error:
            raise self._transport_error(error) from None
        if reply.status >= 300:
            is_azure = any(name in reply.headers for name in OWN_HEADERS)
            body = reply.data if is_azure else NOT_AZURE
            raise self._http_error(reply.status, body, f"{method} {path}")
        return AzureReply(reply.headers, reply.data)

    def _headers(
        self, method: str, path: str, query: Mapping[str, str], body: bytes
    ) -> dict[str, str]:
        """Return the headers of a request to Azure, signed with the account's key."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": VERSION}
        if body:
            headers["Content-Type"] = "application/xml"
        if self._account.key:
            signed = _string_to_sign(
                method, self._account.name + path, query, headers, body
            )
            mac = hmac.digest(self._account.key, signed.encode(), hashlib.sha256)
            signature = base64.b64encode(mac).decode()
            headers["Authorization"] = f"SharedKey {self._account.name}:{signature}"
        return headers

    def _transport_error(self, error: Exception) -> Unavailable:
        """Build the error that says whether the request may have reached Azure."""
        if isinstance(error, ConnectTimeoutError | NewConnectionError):
            return NotSent(f"{self._server} is away: it takes no connection.")
        if isinstance(error, ReadTimeoutError):
            waited = f"{REPLY_SECONDS:g} seconds"
            return AzureTimeout(f"{self._server} is away: no answer in {waited}.")
        kind = type(error).__name__
        return MaybeSent(f"{self._server} is away: the connection broke ({kind}).")

    def _http_error(self, status: int, body: bytes, about: str) -> Exception:
        """Build the error that Azure's status and body stand for."""
        code, words = (
            _first_line(_CODE.search(body)),
            _first_line(_MESSAGE.search(body)),
        )
        if status in TURNED_AWAY:
            return NotSent(f"{self._server} says: {status} {code} {words}".strip())
        if status in IN_TROUBLE:
            return MaybeSent(f"{self._server} says: {status} {code} {words}".strip())
        return AzureRejected(status=status, code=code, about=about, words=words)


def _string_to_sign(
    method: str,
    path: str,
    query: Mapping[str, str],
    headers: Mapping[str, str],
    body: bytes,
) -> str:
    """Build the text that we sign for Azure, which builds the same to check it."""
    unused = "\n" * 2
    length = str(len(body)) if body else ""
    kind = headers.get("Content-Type", "")
    own = [f"{name}:{headers[name]}" for name in ("x-ms-date", "x-ms-version")]
    parameters = [f"{name}:{value}" for name, value in sorted(query.items())]
    standard = f"{method}\n{unused}{length}\n\n{kind}\n" + "\n" * 6
    return standard + "\n".join([*own, f"/{path}", *parameters])


def _parse_messages(reply: AzureReply) -> list[AzureMessage]:
    """Parse the messages of Azure's reply; raise MaybeSent if they lack a date."""
    try:
        return [_parse_message(element) for element in reply.xml().iter("QueueMessage")]
    except (TypeError, ValueError):
        raise MaybeSent("What answers there is not Azure: it lacks a date.") from None


def _parse_message(element: ElementTree.Element) -> AzureMessage:
    """Parse one message of Azure's reply: id, text, time, receipt and count."""
    return AzureMessage(
        id=element.findtext("MessageId") or "",
        text=element.findtext("MessageText") or "",
        inserted_at=parsedate_to_datetime(element.findtext("InsertionTime") or ""),
        dequeue_count=int(element.findtext("DequeueCount") or 0),
        receipt=element.findtext("PopReceipt") or "",
    )


def _first_line(match: re.Match[bytes] | None) -> str:
    """Return Azure's error as one short line without signatures."""
    text = match[1].decode(errors="replace") if match else ""
    return one_line(_SIGNATURE.sub("sig=...", text))


def unless_missing(call: Callable[[], T], *, otherwise: T) -> T:
    """Call a queue of Azure; return a default where the queue is missing."""
    try:
        return call()
    except AzureRejected as error:
        if not error.names_no_queue:
            raise
        return otherwise


class _WithoutSignature(logging.Filter):
    """Keep signatures out of urllib3's debug log."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Hide Azure's signatures in a log record; let every record pass."""
        record.msg, record.args = _SIGNATURE.sub("sig=...", record.getMessage()), None
        return True


logging.getLogger("urllib3.connectionpool").addFilter(_WithoutSignature())
