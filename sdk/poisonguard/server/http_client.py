"""The HTTP client of Poisonweb: raises Away or Refused.

Several urls are one installation: a client stays with the url that answers, and tries
the others when it is away. All calls are idempotent, so a call whose answer was lost is
repeated, at the same url or another one.

Certificates are verified (`SSL_CERT_FILE` names your own authority), redirects are not
followed, proxies of the environment are not used, and no message holds the API key.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode, urlsplit

import urllib3
from urllib3.connection import HTTPConnection

from poisonguard.addresses import without_credentials
from poisonguard.errors import Away, Misconfigured
from poisonguard.server.refusals_and_retry_after import ServerUrl, refusal
from poisonguard.server.response_reading import (
    StreamedAnswer,
    away,
    pieces_of,
    read_json,
)
from poisonguard.server.server_clock import ServerClock
from poisonguard.server.server_sent_events import Event, parse
from poisonguard.version import VERSION

log = logging.getLogger(__name__)

USER_AGENT = f"poisonguard/{VERSION}"
# Smaller bodies are cheaper for the server uncompressed.
GZIP_FROM = 65_536
# Servers refuse what inflates further as a bomb: it is sent uncompressed.
GZIP_RATIO = 100
# Poisonweb sends a ping every 15 s; two of them may be lost.
STREAM_SILENCE = 35.0
# Added to the time-out for large bodies, which the server reads before it answers.
BYTES_PER_SECOND = 1_000_000

# A lost machine sends nothing: TCP keep-alive detects it within 15 s.
_KEEPALIVE = [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2))
    if hasattr(socket, name)
]
_SOCKET_OPTIONS = [
    *HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *_KEEPALIVE,
]

Query = Sequence[tuple[str, str]]


class Client:
    """Call Poisonweb's API; any number of threads may share it."""

    def __init__(
        self,
        urls: Sequence[str],
        api_key: str | Callable[[], str],
        *,
        timeout: float = 5.0,
        user_agent: str = USER_AGENT,
        proxy: str | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        if not urls:
            raise Misconfigured("No url: name the one of your Poisonweb.")
        self._servers = [ServerUrl(_checked_url(url), timer) for url in urls]
        self._working = 0  # the place of the url that answered last
        self._api_key = api_key
        self._timeout = timeout
        self._user_agent = user_agent
        self._proxy = proxy
        self._clock = ServerClock()
        self._reset_after_fork()
        _clients.add(self)

    def _reset_after_fork(self) -> None:
        """Start without HTTP connections: a child must not use its parent's."""
        options: dict[str, Any] = {
            "maxsize": 8,
            "retries": False,
            "cert_reqs": "CERT_REQUIRED",
            "socket_options": _SOCKET_OPTIONS,
        }
        self._pool: urllib3.PoolManager = (
            urllib3.ProxyManager(self._proxy, **options)
            if self._proxy
            else urllib3.PoolManager(**options)
        )
        self._lock = threading.Lock()
        self._streams: set[urllib3.BaseHTTPResponse] = set()
        self._closed = False

    @property
    def url(self) -> str:
        """Return the url of the Poisonweb server that answered last."""
        return self._servers[self._working].url

    def now(self) -> datetime:
        """Return the Poisonweb server's estimated time.

        It does not depend on this machine's clock once the server has answered.
        """
        return self._clock.now()

    @property
    def skew_warning(self) -> str | None:
        """Describe how far this machine's clock is off the Poisonweb server's.

        It has the remedy; None when the clocks differ by little or no answer came yet.
        """
        return self._clock.skew_warning

    def get(self, path: str, query: Query = ()) -> Any:
        """GET a path of Poisonweb, parse the JSON answer; raise Away or Refused."""
        return read_json(self.url, self._request("GET", path, query=query))

    @contextmanager
    def open(self, path: str, query: Query, *, accept: str) -> Iterator[StreamedAnswer]:
        """GET an answer of Poisonweb's that is read as it arrives.

        It is compressed if possible.
        """
        headers = {"Accept": accept, "Accept-Encoding": "gzip"}
        response = self._request("GET", path, query=query, headers=headers)
        try:
            yield StreamedAnswer(self.url, response)
        finally:
            response.close()

    def post(
        self, path: str, body: Mapping[str, object], *, timeout: float | None = None
    ) -> Any:
        """POST a JSON body to Poisonweb, parse its answer; raise Away or Refused."""
        response = self._request("POST", path, body=body, timeout=timeout)
        return read_json(self.url, response)

    def delete(self, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Send Poisonweb a DELETE, parse the JSON answer; raise Away or Refused."""
        return read_json(self.url, self._request("DELETE", path, body=body))

    @contextmanager
    def stream(
        self, path: str, query: Query, last_event_id: str | None
    ) -> Iterator[Iterator[Event]]:
        """Open an event stream from Poisonweb; it ends when either side cuts it."""
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        response = self._request(
            "GET", path, query=query, headers=headers, timeout=STREAM_SILENCE
        )
        with self._lock:
            self._streams.add(response)
            closed = self._closed
        try:
            yield parse(() if closed else pieces_of(response))
        finally:
            with self._lock:
                self._streams.discard(response)
            response.close()

    def end_streams(self) -> None:
        """End at once each event stream that this client reads from Poisonweb.

        Its reader, on another thread, ends too.
        """
        with self._lock:
            for response in self._streams:
                # The stream may have ended already, and its socket be closed.
                with suppress(OSError, RuntimeError, ValueError):
                    response.shutdown()

    def close(self) -> None:
        """End this client's event streams and connections to Poisonweb.

        Later streams are empty.
        """
        with self._lock:
            self._closed = True
        self.end_streams()
        self._pool.clear()

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Request from Poisonweb's urls in turn; raise Away when all are away."""
        all_headers = {**self._headers(), **(headers or {})}
        data = None if body is None else _encoded(body, all_headers)
        wait = (timeout or self._timeout) + len(data or b"") / BYTES_PER_SECOND
        target = f"/api/v1{path}" + (f"?{urlencode(query)}" if query else "")
        first, reasons = self._working, list[str]()
        for place in (*range(first, len(self._servers)), *range(first)):
            server = self._servers[place]
            try:
                answer = self._ask(server, method, target, data, all_headers, wait)
            except Away as reason:
                reasons.append(str(reason))
                continue
            self._stay_with(place)
            return answer
        raise Away(" ".join(reasons))

    def _ask(
        self,
        server: ServerUrl,
        method: str,
        target: str,
        data: bytes | None,
        headers: Mapping[str, str],
        wait: float,
    ) -> urllib3.BaseHTTPResponse:
        """Send one Poisonweb url a request, and return its answer if that is good.

        Else raise Away or Refused.
        """
        reading = method == "GET"
        pause = server.remaining_pause(reading=reading)
        if pause > 0:
            raise Away(f"{server.url} asked for {pause:.0f} s of patience.")
        asked_at = time.monotonic()
        try:
            response = self._pool.request(
                method,
                server.url + target,
                body=data,
                headers=headers,
                timeout=urllib3.Timeout(connect=self._timeout, read=wait),
                redirect=False,
                preload_content=False,
            )
        except urllib3.exceptions.HTTPError as reason:
            raise away(server.url, reason) from reason
        self._clock.learn(response.headers.get("Date"), asked_at=asked_at)
        if response.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise refusal(server, response)
        return response

    def _headers(self) -> dict[str, str]:
        """Return the HTTP headers of requests to Poisonweb.

        Raise Misconfigured for an unusable API key.
        """
        key = self._api_key if isinstance(self._api_key, str) else self._api_key()
        key = key.strip()
        if not re.fullmatch("[!-~]+", key):
            raise Misconfigured(
                "The API key is empty or holds a space, a line end or the like:"
                " give it as it was shown."
            )
        return {
            "Authorization": f"Bearer {key}",
            "User-Agent": self._user_agent,
            "Accept": "application/json",
        }

    def _stay_with(self, place: int) -> None:
        """Use this url of Poisonweb from now on; end the last url's streams."""
        if place != self._working:
            before, self._working = self.url, place
            log.warning("%s is away: %s is used from now on", before, self.url)
            # Streams of the other url may never send anything again.
            self.end_streams()


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _reset_all_after_fork() -> None:
    """Start a forked child's Poisonweb clients without its parent's connections."""
    for client in list(_clients):
        client._reset_after_fork()  # noqa: SLF001 # ours


os.register_at_fork(after_in_child=_reset_all_after_fork)


def _checked_url(url: str) -> str:
    """Return a Poisonweb url without last slash; raise Misconfigured if unusable."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise Misconfigured(
            f"{without_credentials(url)} is no url: write it like https://poisonweb:8000"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise Misconfigured(
            f"The url of {parts.hostname} holds a user, a query or a fragment:"
            " leave it out; the API key is a setting of its own."
        )
    return url.rstrip("/")


def _encoded(body: Mapping[str, object], headers: dict[str, str]) -> bytes:
    """Return the body of a request to Poisonweb as bytes.

    Set its type and encoding in `headers`.
    """
    data = json.dumps(body, separators=(",", ":")).encode()
    headers["Content-Type"] = "application/json"
    if len(data) <= GZIP_FROM:
        return data
    small = gzip.compress(data, compresslevel=1, mtime=0)
    if len(small) * GZIP_RATIO < len(data):
        return data
    headers["Content-Encoding"] = "gzip"
    return small
