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
import random
import re
import socket
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode, urlsplit

import urllib3
from urllib3.connection import HTTPConnection

from poisonguard.addresses import redacted
from poisonguard.errors import Away, Misconfigured, Refused
from poisonguard.server.events import Event, parse
from poisonguard.version import VERSION

log = logging.getLogger(__name__)

USER_AGENT = f"poisonguard/{VERSION}"
# Smaller bodies are cheaper for the server uncompressed.
GZIP_FROM = 65_536
# Servers refuse what inflates further as a bomb: it is sent uncompressed.
GZIP_RATIO = 100
# The limit of a streamed answer: room for a million skips.
MOST_INFLATED = 1024 * 1024 * 1024
_PIECE = 65_536
# Poisonweb sends a ping every 15 s; two of them may be lost.
STREAM_SILENCE = 35.0
# Added to the time-out for large bodies, which the server reads before it answers.
BYTES_PER_SECOND = 1_000_000
RETRY_AFTER_LIMIT = 60.0
# Reads cost the server little, and skip lists should be current soon.
READ_RETRY_AFTER_LIMIT = 1.0
SKEW_WARNED = 60.0
_NO_DATE_YET = 2**37  # seconds, in the year 6325: within the range of `datetime`
_SKEW_NOISE = 5.0  # `Date` has whole seconds, and an answer takes time

_RETRY_LATER = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
}
_REMEDIES = {
    401: "check the API key, or have one made: manage.py create_api_key",
    403: "give the API key the scope and the topic it lacks",
    404: "check the url: nothing before /api/v1 belongs there but a proxy's prefix",
}

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


class Backoff:
    """Random pauses between tries, so that many clients do not retry together.

    A server that returns is noticed within `cap` seconds.
    """

    def __init__(self, *, floor: float = 0.1, first: float = 0.5, cap: float = 1.0):
        self._floor, self._first, self._cap = floor, first, cap
        self._longest = first

    def reset(self) -> None:
        self._longest = self._first

    def next(self) -> float:
        longest = self._longest
        self._longest = min(self._cap, longest * 2)
        return random.uniform(self._floor, longest)  # noqa: S311 # no secret


@dataclass(slots=True)
class _Server:
    """One url, and until when it asked for no requests (monotonic seconds)."""

    url: str
    writes_from: float = 0.0
    reads_from: float = 0.0

    def remaining_pause(self, *, reading: bool) -> float:
        return (self.reads_from if reading else self.writes_from) - time.monotonic()


class StreamedAnswer:
    """An answer that is read as it arrives, by lines, or whole as JSON."""

    def __init__(self, url: str, response: urllib3.BaseHTTPResponse) -> None:
        self._url = url
        self._response = response
        header = response.headers.get("Content-Type", "")
        self.media_type = header.partition(";")[0].strip().lower()

    def json(self) -> Any:
        return _json(self._url, self._response)

    def lines(self, *, longest: int) -> Iterator[bytes]:
        """Yield each line without its end; raise Away when one is longer, or cut."""
        try:
            yield from _lines(_inflated(self._response), longest)
        except (urllib3.exceptions.HTTPError, zlib.error, _Excess) as reason:
            raise _away(self._url, reason) from reason


class _Excess(Exception):
    """An answer is larger than Poisonweb's answers can be."""


class Client:
    """Calls Poisonweb's API; any number of threads may share it."""

    def __init__(
        self,
        urls: Sequence[str],
        api_key: str | Callable[[], str],
        *,
        timeout: float = 5.0,
        user_agent: str = USER_AGENT,
        proxy: str | None = None,
    ) -> None:
        if not urls:
            raise Misconfigured("No url: name the one of your Poisonweb.")
        self._servers = [_Server(_usable(url)) for url in urls]
        self._working = 0  # the place of the url that answered last
        self._api_key = api_key
        self._timeout = timeout
        self._user_agent = user_agent
        self._proxy = proxy
        self.skew: float | None = None  # seconds the server's clock is ahead of ours
        # The offset from the monotonic clock to the server's time.
        self._to_server = time.time() - time.monotonic()
        self._reset_after_fork()
        _clients.add(self)

    def _reset_after_fork(self) -> None:
        """Start without connections: a child must not use those of its parent."""
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
        """Return the url that answered last."""
        return self._servers[self._working].url

    def now(self) -> datetime:
        """Return the estimated server time, whatever our clock is set to."""
        return datetime.fromtimestamp(time.monotonic() + self._to_server, UTC)

    def get(self, path: str, query: Query = ()) -> Any:
        return _json(self.url, self._request("GET", path, query=query))

    @contextmanager
    def open(self, path: str, query: Query, *, accept: str) -> Iterator[StreamedAnswer]:
        """Get an answer that is read as it arrives, compressed where possible."""
        headers = {"Accept": accept, "Accept-Encoding": "gzip"}
        response = self._request("GET", path, query=query, headers=headers)
        try:
            yield StreamedAnswer(self.url, response)
        finally:
            response.close()

    def post(
        self, path: str, body: Mapping[str, object], *, timeout: float | None = None
    ) -> Any:
        response = self._request("POST", path, body=body, timeout=timeout)
        return _json(self.url, response)

    def delete(self, path: str, body: Mapping[str, object] | None = None) -> Any:
        return _json(self.url, self._request("DELETE", path, body=body))

    @contextmanager
    def stream(
        self, path: str, query: Query, last_event_id: str | None
    ) -> Iterator[Iterator[Event]]:
        """Open a stream of events, which ends when either side cuts it."""
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
            yield parse(() if closed else _pieces(response))
        finally:
            with self._lock:
                self._streams.discard(response)
            response.close()

    def cut(self) -> None:
        """End every open stream: its reader sees the end at once."""
        with self._lock:
            for response in self._streams:
                # The stream may have ended already, and its socket be closed.
                with suppress(OSError, RuntimeError, ValueError):
                    response.shutdown()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self.cut()
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
        """Try the url that works, then the others; raise Away when all are away."""
        all_headers = {**self._headers(), **(headers or {})}
        data = None if body is None else _encoded(body, all_headers)
        wait = (timeout or self._timeout) + len(data or b"") / BYTES_PER_SECOND
        target = f"/api/v1{path}" + (f"?{urlencode(query)}" if query else "")
        first, away = self._working, list[str]()
        for place in (*range(first, len(self._servers)), *range(first)):
            server = self._servers[place]
            try:
                answer = self._ask(server, method, target, data, all_headers, wait)
            except Away as reason:
                away.append(str(reason))
                continue
            self._stay_with(place)
            return answer
        raise Away(" ".join(away))

    def _ask(
        self,
        server: _Server,
        method: str,
        target: str,
        data: bytes | None,
        headers: Mapping[str, str],
        wait: float,
    ) -> urllib3.BaseHTTPResponse:
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
            raise _away(server.url, reason) from reason
        self._compare_clocks(response, asked_at)
        if response.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise _refusal(server, response)
        return response

    def _headers(self) -> dict[str, str]:
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
        if place != self._working:
            before, self._working = self.url, place
            log.warning("%s is away: %s is used from now on", before, self.url)
            # Streams of the other url may never send anything again.
            self.cut()

    def _compare_clocks(
        self, response: urllib3.BaseHTTPResponse, asked_at: float
    ) -> None:
        there = _moment(response.headers.get("Date"))
        if there is None:
            return
        now, here = time.monotonic(), time.time()
        ahead = there + 0.5 - (here - (now - asked_at) / 2)
        before, self.skew = self.skew, ahead
        self._to_server = here - now + (ahead if abs(ahead) > _SKEW_NOISE else 0.0)
        if abs(self.skew) > SKEW_WARNED >= abs(before or 0.0):
            log.warning("%s", self.skew_warning)

    @property
    def skew_warning(self) -> str | None:
        """Describe the clock skew and its remedy; None when there is little."""
        if self.skew is None or abs(self.skew) <= SKEW_WARNED:
            return None
        way = "behind" if self.skew > 0 else "ahead of"
        return (
            f"The clock of this machine is {abs(self.skew):.0f} s {way} the server's:"
            " set it by NTP. Skips expire by the server's clock meanwhile."
        )


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _reset_all_after_fork() -> None:
    for client in list(_clients):
        client._reset_after_fork()  # noqa: SLF001 # ours


os.register_at_fork(after_in_child=_reset_all_after_fork)


def _usable(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise Misconfigured(
            f"{redacted(url)} is no url: write it like https://poisonweb:8000"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise Misconfigured(
            f"The url of {parts.hostname} holds a user, a query or a fragment:"
            " leave it out; the API key is a setting of its own."
        )
    return url.rstrip("/")


def _encoded(body: Mapping[str, object], headers: dict[str, str]) -> bytes:
    """Return the bytes of a body, and set their type and encoding in `headers`."""
    data = json.dumps(body, separators=(",", ":")).encode()
    headers["Content-Type"] = "application/json"
    if len(data) <= GZIP_FROM:
        return data
    small = gzip.compress(data, compresslevel=1, mtime=0)
    if len(small) * GZIP_RATIO < len(data):
        return data
    headers["Content-Encoding"] = "gzip"
    return small


def _json(url: str, response: urllib3.BaseHTTPResponse) -> Any:
    try:
        return json.loads(response.data)
    except urllib3.exceptions.HTTPError as reason:
        raise _away(url, reason) from reason
    except (ValueError, RecursionError):
        raise Away(
            f"{url} answers with something that is no JSON:"
            " is it Poisonweb, and nothing in between that answers for it?"
        ) from None


def _inflated(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yield the inflated body in pieces of bounded size."""
    pieces, total = response.stream(_PIECE, decode_content=False), 0
    if response.headers.get("Content-Encoding", "").strip().lower() == "gzip":
        pieces = _gunzipped(pieces)
    for piece in pieces:
        total += len(piece)
        if total > MOST_INFLATED:
            raise _Excess(f"its answer has more than {MOST_INFLATED} bytes")
        yield piece


def _gunzipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    inflating = zlib.decompressobj(wbits=31)
    for piece in pieces:
        rest = piece
        while rest:
            yield inflating.decompress(rest, _PIECE)
            rest = inflating.unconsumed_tail


def _lines(pieces: Iterator[bytes], longest: int) -> Iterator[bytes]:
    begun: list[bytes] = []  # the parts of the line without an end so far
    size = 0
    for piece in pieces:
        *whole, rest = piece.split(b"\n")
        for part in whole:
            yield b"".join([*begun, part])
            begun, size = [], 0
        begun.append(rest)
        size += len(rest)
        if size > longest:
            raise _Excess(f"its answer has a line of more than {longest} bytes")


def _pieces(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yield what arrives; a cut ends the stream like the server's own end."""
    try:
        while piece := response.read1(65_536):
            yield piece
    except urllib3.exceptions.HTTPError as reason:
        log.debug("the stream broke: %s", reason)


def _away(url: str, reason: Exception) -> Away:
    return Away(
        f"{url} is away ({reason}): check that it runs, its name, its certificate and"
        " the way to it."
    )


def _refusal(server: _Server, response: urllib3.BaseHTTPResponse) -> Away | Refused:
    status, headers = response.status, response.headers
    detail = _detail(response)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _RETRY_LATER:
        pause = min(_seconds(headers.get("Retry-After")), RETRY_AFTER_LIMIT)
        now, limited = time.monotonic(), status == HTTPStatus.TOO_MANY_REQUESTS
        server.writes_from = now + pause
        server.reads_from = now + min(
            pause, pause if limited else READ_RETRY_AFTER_LIMIT
        )
        return Away(f"{server.url} answers {status}. {detail}".strip())
    if status < HTTPStatus.BAD_REQUEST:
        place = headers.get("Location", "nowhere")
        return Refused(
            f"{server.url} redirects to {place}: give the url it wants.", status=status
        )
    remedy = _REMEDIES.get(status, "")
    said = f"{server.url} answers {status}. {detail}".strip()
    return Refused(f"{said} ({remedy})" if remedy else said, status=status)


def _detail(response: urllib3.BaseHTTPResponse) -> str:
    """Return the text of the server's problem (RFC 9457), or ""."""
    try:
        problem = json.loads(response.data)
    except (ValueError, RecursionError, urllib3.exceptions.HTTPError):
        return ""
    if not isinstance(problem, Mapping):
        return ""
    errors = problem.get("errors")
    members = errors if isinstance(errors, list) else []
    places = [
        f"{error.get('pointer')}: {error.get('detail')}"
        for error in members
        if isinstance(error, Mapping)
    ]
    return " ".join([str(problem.get("detail") or ""), *places]).strip()


def _seconds(header: str | None) -> float:
    """Parse a Retry-After, seconds or a date; return 0 for anything else."""
    if header is None:
        return 0.0
    if re.fullmatch("[0-9]{1,9}", header.strip()):
        return float(header)
    moment = _moment(header)
    return 0.0 if moment is None else max(0.0, moment - time.time())


def _moment(header: str | None) -> float | None:
    """Parse an HTTP date; return None for what cannot be a server's."""
    try:
        moment = parsedate_to_datetime(header or "").timestamp()
    except (ValueError, OverflowError):
        return None
    return moment if 0 <= moment < _NO_DATE_YET else None
