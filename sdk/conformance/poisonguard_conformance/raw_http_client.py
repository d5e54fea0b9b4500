"""A plain HTTP client: it retries and repairs nothing.

The SDK's client hides a server's faults from a consumer. Here every fault must show.
"""

from __future__ import annotations

import gzip
import json
import queue
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from time import monotonic
from typing import Any
from urllib.parse import urlencode, urlsplit

from poisonguard.errors import GuardError
from poisonguard.server.server_sent_events import Event, parse

ROOT = "/api/v1"
GOOD = (HTTPStatus.OK, HTTPStatus.CREATED)
SHOWN_BYTES = 300
PIECE = 65_536

Json = dict[str, Any]
Query = Sequence[tuple[str, str]]


class Violated(Exception):
    """The server does not do what the protocol says."""


class Unreachable(Violated):
    """No server answers at this address."""


class MissingScope(Exception):
    """The key lacks what a check needs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpAnswer:
    """The unchanged answer to one call."""

    call: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Parse the body of the checked server's answer; raise Violated for no JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise Violated(f"{self.call} answered no JSON: {self.excerpt}") from None

    @property
    def json_of_success(self) -> Any:
        """Parse the body of the checked server's success answer (200 or 201).

        Raise Violated for any other status, or for no JSON.
        """
        if self.status not in GOOD:
            raise Violated(f"{self.call} answered {self.status}: {self.excerpt}")
        return self.json

    def problem_of_refusal(self, status: HTTPStatus) -> Json:
        """Parse the problem document of the checked server's answer of this status.

        Raise Violated for another status or type, or if a member is missing.
        """
        media_type = self.headers.get("content-type", "").partition(";")[0]
        if self.status != status:
            raise Violated(f"{self.call} answered {self.status}, not {status.value}")
        if media_type != "application/problem+json":
            raise Violated(f"{self.call} answered {status.value} as {media_type}")
        problem: Json = self.json
        missing = {"type", "title", "status", "detail"} - problem.keys()
        if missing:
            raise Violated(
                f"a problem of {self.call} lacks {', '.join(sorted(missing))}"
            )
        return problem

    @property
    def excerpt(self) -> str:
        """Return the detail of the checked server's problem document.

        Of any other body, return how it begins.
        """
        with suppress(ValueError, TypeError, LookupError):
            return str(json.loads(self.body)["detail"])
        return repr(self.body[:SHOWN_BYTES])


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamEvent:
    """One event of the stream, with parsed data; `id` is its place."""

    kind: str
    data: Json
    id: str

    @classmethod
    def of(cls, event: Event) -> StreamEvent:
        """Parse an event of the checked server's skip stream.

        Raise TypeError if its data are no JSON object, ValueError if they are no JSON.
        """
        data = json.loads(event.data)
        if not isinstance(data, dict):
            raise TypeError(f"the data of {event.kind} are no JSON object")
        return cls(kind=event.kind, data=data, id=event.id)


class EventStream:
    """The events of a stream; a thread reads them, so that waits can time out."""

    def __init__(self, response: HTTPResponse, link: socket.socket) -> None:
        self._response = response
        self._link = link
        self._events: queue.SimpleQueue[StreamEvent | Violated | None] = (
            queue.SimpleQueue()
        )
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def next(self, *, within: float) -> StreamEvent | None:
        """Wait for the next event of the checked server's skip stream.

        Return None at the time-out or the end. Raises Violated where what came is no
        event.
        """
        if self._ended:
            return None
        try:
            event = self._events.get(timeout=max(0.0, within))
        except queue.Empty:
            return None
        if isinstance(event, Violated):
            raise event
        self._ended = event is None
        return event

    def until(self, *kinds: str, within: float) -> Iterator[StreamEvent]:
        """Yield events of these kinds from the checked server's skip stream.

        They end when time is up or the stream ends.
        """
        deadline = monotonic() + within
        while event := self.next(within=deadline - monotonic()):
            if event.kind in kinds:
                yield event

    def ends(self, *, within: float) -> bool:
        """Tell whether the checked server's skip stream ends within this time.

        Events that come before its end are ignored.
        """
        deadline = monotonic() + within
        while self.next(within=deadline - monotonic()):
            pass
        return self._ended

    def close(self) -> None:
        """Cut the connection of the checked server's skip stream.

        Wait for the thread that reads it.
        """
        # The waiting reader holds the response: only the socket can be shut down.
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._response.close()

    def _read(self) -> None:
        """Queue each event of the checked server's skip stream for `next`.

        Queue then what broke the stream, if anything did, and its end.
        """
        try:
            # Cut off, it has ended to who reads.
            with suppress(OSError, HTTPException):
                for event in parse(iter(lambda: self._response.read1(PIECE), b"")):
                    self._events.put(StreamEvent.of(event))
        except (GuardError, TypeError, ValueError) as broken:
            self._events.put(Violated(f"the stream holds what is no event: {broken}"))
        self._events.put(None)


class ProtocolClient:
    """The calls of one consumer, with its key; each call has its own connection."""

    def __init__(self, *, url: str, key: str, seconds: float) -> None:
        self._url = urlsplit(url)
        self._key = key
        self._seconds = seconds
        is_secure = self._url.scheme == "https"
        self._connection = HTTPSConnection if is_secure else HTTPConnection

    def get(self, path: str, query: Query = ()) -> HttpAnswer:
        """GET a path of the checked server; return the answer of any status but 403.

        Raises MissingScope at 403.
        """
        return self.send("GET", _address(path, query))

    def delete(self, path: str, body: object = None) -> HttpAnswer:
        """Send the checked server a DELETE request, with or without a body.

        Return the answer of any status but 403. Raises MissingScope at 403.
        """
        return self.send("DELETE", path, _encoded(body))

    def post(self, path: str, body: object, **headers: str) -> HttpAnswer:
        """POST a value as JSON, or bytes as they are, to the checked server.

        Return the answer of any status but 403. Raises MissingScope at 403.
        """
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.send("POST", path, _encoded(body), named)

    def post_gzip(self, path: str, body: object) -> HttpAnswer:
        """POST a value as gzipped JSON to the checked server; return the answer."""
        return self.post(path, gzip.compress(_encoded(body)), Content_Encoding="gzip")

    def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """Send a request to the checked server; return its answer.

        Raise MissingScope when it is 403, Unreachable without a connection, and
        Violated without an answer.
        """
        call = f"{method} {path.partition('?')[0]}"
        with closing(self._connect()) as connection:
            try:
                response = self._send_request(
                    connection, method, path, body, headers or {}
                )
                return _read_answer(call, response)
            except (OSError, HTTPException) as trouble:
                raise Violated(f"{call} got no answer: {trouble!r}") from trouble

    @contextmanager
    def stream(self, query: Query, *, last_event_id: str = "") -> Iterator[EventStream]:
        """Open the checked server's skip stream, and close it when the block ends."""
        path = _address("/skips/stream", query)
        headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
        with closing(self._connect()) as connection:
            link: socket.socket = connection.sock
            try:
                response = self._send_request(connection, "GET", path, b"", headers)
                _expect_stream(response)
                link.settimeout(None)
            except (OSError, HTTPException) as trouble:
                raise Violated(f"the stream got no answer: {trouble!r}") from trouble
            with closing(EventStream(response, link)) as opened:
                yield opened

    def _connect(self) -> HTTPConnection:
        """Open a connection to the checked server; raise Unreachable without one."""
        host = self._url.hostname or ""
        connection = self._connection(host, self._url.port, timeout=self._seconds)
        try:
            connection.connect()
        except OSError as trouble:
            connection.close()
            raise Unreachable(f"{host} cannot be reached: {trouble}") from trouble
        return connection

    def _send_request(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
    ) -> HTTPResponse:
        """Send the checked server a request with the API key.

        Return the response, its body unread.
        """
        whole = {
            "Authorization": f"Bearer {self._key}",
            "Content-Type": "application/json",
            **headers,
        }
        address = f"{self._url.path.rstrip('/')}{ROOT}{path}"
        connection.request(method, address, body, whole)
        return connection.getresponse()


def _encoded(body: object) -> bytes:
    """Return the body of a conformance check's request.

    Bytes are as they are, None is no bytes, and any other value is JSON.
    """
    if body is None:
        return b""
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def _address(path: str, query: Query) -> str:
    """Return a path of the server's API with its query."""
    return f"{path}?{urlencode(query, errors='surrogatepass')}" if query else path


def _read_answer(call: str, response: HTTPResponse) -> HttpAnswer:
    """Read the checked server's whole response; raise MissingScope when it is 403."""
    answer = HttpAnswer(
        call=call,
        status=response.status,
        headers={name.lower(): value for name, value in response.getheaders()},
        body=response.read(),
    )
    if answer.status == HTTPStatus.FORBIDDEN:
        raise MissingScope(
            str(answer.problem_of_refusal(HTTPStatus.FORBIDDEN)["detail"])
        )
    return answer


def _expect_stream(response: HTTPResponse) -> None:
    """Raise Violated unless the checked server's response is a stream of events."""
    if response.status != HTTPStatus.OK:
        answer = _read_answer("GET /skips/stream", response)
        raise Violated(f"{answer.call} answered {answer.status}: {answer.excerpt}")
    media_type = response.headers.get_content_type()
    if media_type != "text/event-stream":
        raise Violated(f"GET /skips/stream answered as {media_type}")
