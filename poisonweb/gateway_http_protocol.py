"""The gateway's HTTP protocol: Uvicorn's by httptools, with raw headers and limits.

httptools reads a request in a quarter of the time that h11 needs. It lets pass what a
gateway must refuse (RFC 9112): a request without one Host (3.2), another transfer
coding than chunked (6.1), and heads without end. It takes registered methods
only, so it reads POST for all. A request that does not wait for the
answer to the one before it is not taken (9.3.2): Uvicorn would queue any number.
"""

from __future__ import annotations

import json
import re
import struct
from functools import partial
from http import HTTPStatus
from socket import SO_LINGER, SOL_SOCKET
from typing import TYPE_CHECKING, Any, NoReturn

import httptools
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from poisonweb.request_arrival_timeout import TOO_LATE, RequestTimeLimit

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable

    from uvicorn._types import (
        ASGI3Application,
        ASGIReceiveCallable,
        ASGISendCallable,
        ASGISendEvent,
        HTTPResponseBodyEvent,
        HTTPResponseStartEvent,
        Scope,
    )

    from apps.brokers.adapter_contract import Header

# Of a head, of the lines between chunks, or of trailers. Smaller heads that are still
# too large are refused by the application, with a clear answer.
MOST_BYTES_OUTSIDE_BODIES = 256 * 1024
# After which a caller that takes nothing of its answer loses its connection.
SLOW_READER_SECONDS = 60.0
# A connection that is closed with unread bytes is reset, and its answer lost.
LINGER_SECONDS = 1.0
REMEDY = "Check its first line, headers and length."
# A token of RFC 9110, 5.6.2; the longest registered one has 17 characters.
METHOD = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]{1,32}")
WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


class GatewayProtocol(HttpToolsProtocol):
    """A caller's connection: the state of its scope has `raw_headers` and `abort`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The server cancels what is in its own set at the end of a stop: first tries
        # go on, and the application waits for them.
        self.tasks = set()
        self._time_limit = RequestTimeLimit(self.loop, self._refuse_late)
        self._raw_headers: list[Header] = []
        self._is_in_head = False
        # While a parser is told how long the body is that it reads next.
        self._is_head_known = False
        self._bytes_outside_bodies = 0
        self._is_refused = False
        # What came of the next request's method; None once the method is whole.
        self._beginning: bytes | None = b""
        self._method = b""
        self._reader_timer: asyncio.TimerHandle | None = None

    # What the event loop calls.

    def connection_made(  # type: ignore[override] # as the parent class does
        self, transport: asyncio.Transport
    ) -> None:
        """Start the time limit for the first request of a caller's new connection."""
        super().connection_made(transport)
        self._time_limit.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit for a caller's request: its connection is lost."""
        self._time_limit.stop()
        self._stop_waiting_for_reader()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of a caller; refuse what is no HTTP, or too long.

        What a refused caller still sends is ignored: so the refusal arrives.
        """
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        self._bytes_outside_bodies += len(data)
        try:
            self._parse(self._without_method(data))
        except NotHttp as error:
            self.send_400_response(str(error))
        except httptools.HttpParserError as error:
            self.send_400_response(_reason(error))
        else:
            if self._bytes_outside_bodies > MOST_BYTES_OUTSIDE_BODIES:
                self.send_400_response("The head of the request has no end.")

    def eof_received(self) -> None:
        """Refuse a caller's request that ends before its declared length."""
        cycle = self._cycle_under_way()
        if cycle is not None and cycle.more_body and not self._is_refused:
            self.send_400_response("The request ended before its length.")

    def pause_writing(self) -> None:
        """Give a caller that does not read its answer a time in which it must."""
        super().pause_writing()
        self._reader_timer = self.loop.call_later(SLOW_READER_SECONDS, self._abort)

    def resume_writing(self) -> None:
        """Stop the time of a caller that reads its answer again."""
        self._stop_waiting_for_reader()
        super().resume_writing()

    def _stop_waiting_for_reader(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _without_method(self, data: bytes) -> bytes:
        """Take the method from a request's first bytes; return the rest, as of a POST.

        That is b"" until the method is whole. Other bytes stay as they are. Raises
        NotHttp for what is no method, and for CONNECT.
        """
        if self._beginning is None:
            return data
        self._beginning = (self._beginning + data).lstrip(b"\r\n")
        method, blank, rest = self._beginning.partition(b" ")
        if not METHOD.fullmatch(method) and (method or blank):
            raise NotHttp("Invalid HTTP request received.")
        if method == b"CONNECT":
            raise NotHttp("The gateway opens no tunnels.")
        if not blank:
            return b""
        self._method, self._beginning = method, None
        return b"POST " + rest

    def _parse(self, data: bytes) -> None:
        """Parse bytes; raise HttpParserError for what is no HTTP.

        A request for another protocol is taken as what it is: HTTP. httptools reads no
        body of one, so another parser goes on.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as end_of_head:
            self.parser = httptools.HttpRequestParser(self)
            self._is_head_known = True
            self.parser.feed_data(self._head_of_length())
            self._is_head_known = False
            self._parse(data[end_of_head.args[0] :])

    def _head_of_length(self) -> bytes:
        """Write a head that says only how long the body of the last request is."""
        lines = [
            b"%b: %b\r\n" % header
            for header in self.headers
            if header[0] in {b"content-length", b"transfer-encoding"}
        ]
        return b"".join([b"POST / HTTP/1.1\r\n", *lines, b"\r\n"])

    # What httptools calls.

    def on_message_begin(self) -> None:
        """Start the scope of a request whose method came.

        Raises NotHttp where the request before it has no whole answer yet.
        """
        if self._is_head_known:
            return
        if self._beginning is not None or self._cycle_under_way() is not None:
            raise NotHttp("Wait for the answer to the request before.")
        super().on_message_begin()
        self._is_in_head = True
        self._raw_headers = []
        state = self.scope["state"]
        state["raw_headers"], state["abort"] = self._raw_headers, self._abort

    def on_url(self, url: bytes) -> None:
        """Store a piece of a request's target."""
        if not self._is_head_known:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header of a request's head as it came; ignore those behind a body."""
        if self._is_in_head:
            value = value.rstrip(b" \t")
            self._raw_headers.append((name, value))
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the answer to a request; raise NotHttp for a head that is not valid."""
        if self._is_head_known:
            return
        self._check_head()
        self._is_in_head = False
        super().on_headers_complete()
        self.scope["method"] = self._method.decode("ascii")
        path, _, query = self.url.partition(b"?")
        self.scope["raw_path"], self.scope["query_string"] = path, query

    def on_body(self, body: bytes) -> None:
        """Store a piece of a request's body."""
        self._bytes_outside_bodies = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the time limit for a request that is whole, unless it is answered.

        httptools calls it too early where a request offers another protocol.
        """
        if self.parser.should_upgrade():
            return
        self._bytes_outside_bodies, self._beginning = 0, b""
        if self._cycle_under_way() is not None:
            self._time_limit.suspend()
        super().on_message_complete()

    def _check_head(self) -> None:
        """Raise NotHttp for a head that httptools takes, and a gateway must not."""
        names = [name for name, _ in self.headers]
        hosts = names.count(b"host")
        version = self.parser.get_http_version()
        is_old = version == "1.0"
        if version not in {"1.0", "1.1"}:
            raise NotHttp("Send HTTP/1.1 or HTTP/1.0.")
        if hosts > 1 or not (hosts or is_old):
            raise NotHttp("Send one Host.")
        if b"transfer-encoding" in names and (is_old or not self._is_chunked()):
            raise NotHttp("The only Transfer-Encoding here is chunked, in HTTP/1.1.")
        if is_old:
            self.expect_100_continue = False  # RFC 9110, 10.1.1

    def _is_chunked(self) -> bool:
        """Tell whether `chunked` is the only transfer coding of a request."""
        codings = [
            value.lower()
            for name, value in self.headers
            if name == b"transfer-encoding"
        ]
        return codings == [b"chunked"]

    # What Uvicorn calls.

    def on_response_complete(self) -> None:
        """Start the time limit for a connection's next request."""
        super().on_response_complete()
        self._time_limit.start()

    def send_400_response(self, reason: str) -> None:
        """Refuse what is no HTTP with a 400 problem, unless an answer is under way.

        The connection is closed later, so that the refusal arrives.
        """
        self._is_refused = True
        self._time_limit.stop()
        cycle = self._cycle_under_way()
        if cycle is not None:
            if not cycle.more_body:
                cycle.keep_alive = False  # the answer to the request before it is next
                return
            if cycle.response_started:
                self.transport.close()
                return
            cycle.disconnected, cycle.waiting_for_100_continue = True, False
        self.transport.write(_problem(reason))
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _start_asgi_task(
        self, cycle: RequestResponseCycle, app: ASGI3Application
    ) -> None:
        """Answer a request by AnswerWriter: Uvicorn writes headers in small letters."""
        super()._start_asgi_task(cycle, partial(_call_with_writer, app, cycle))

    def _refuse_late(self) -> None:
        """Answer 408 to a late request unless answered; close the connection."""
        if self.transport.is_closing():
            return
        # An answer may be under way, or whole before the end of its request.
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or not (cycle.response_started and cycle.more_body):
            self.transport.write(TOO_LATE)
        # The application, which waits for the rest, receives a disconnect.
        self.transport.close()

    def _cycle_under_way(self) -> RequestResponseCycle | None:
        """Return the last request with its answer; None without one, or after it."""
        # Uvicorn sets None before the first request, and annotates it otherwise.
        cycle: RequestResponseCycle | None = self.cycle
        return None if cycle is None or cycle.response_complete else cycle

    def _abort(self) -> None:
        """Reset a caller's connection: any other end may look like that of the answer.

        A connection that is closing may have no socket any more.
        """
        if not self.transport.is_closing():
            linger_for_no_time = struct.pack("ii", 1, 0)
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(SOL_SOCKET, SO_LINGER, linger_for_no_time)
        self.transport.abort()


class NotHttp(ValueError):
    """A request's head that httptools takes, and a gateway must not."""


class AnswerWriter:
    """Write the answer to one request of a caller, with names of headers as they are.

    The head leaves with the first piece of the body: a packet of its own would wake the
    caller twice.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._head = b""
        self._has_no_body = self._is_chunked = False
        self._missing: int | None = None  # bytes of a body of known length

    async def send(self, message: ASGISendEvent) -> None:
        """Send the caller a message of the application, as soon as it takes that."""
        cycle = self._cycle
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        if message["type"] == "http.response.start":
            self._begin(message)
        elif message["type"] == "http.response.body":
            self._write(message)

    def _begin(self, message: HTTPResponseStartEvent) -> None:
        """Prepare the head of an answer; choose how the end of its body is told."""
        cycle, status = self._cycle, message["status"]
        headers = list(message["headers"])
        names = {name.lower(): value for name, value in headers}
        self._has_no_body = cycle.scope["method"] == "HEAD" or status in WITHOUT_BODY
        if not self._has_no_body and b"content-length" not in names:
            self._is_chunked = cycle.scope["http_version"] != "1.0"
        elif not self._has_no_body:
            self._missing = int(names[b"content-length"])
        if self._is_chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        if b"connection" in names:
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            headers.append((b"connection", b"close"))
        self._head = _head(status, headers)
        cycle.response_started, cycle.waiting_for_100_continue = True, False

    def _write(self, message: HTTPResponseBodyEvent) -> None:
        """Send a piece of an answer's body; end the answer after the last one."""
        is_last = not message["more_body"]
        piece = b"" if self._has_no_body else message["body"]
        self._count(piece, is_last=is_last)
        if self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
            piece = chunk + (b"0\r\n\r\n" if is_last else b"")
        if data := self._head + piece:
            self._cycle.transport.write(data)
            self._head = b""
        if is_last:
            self._end()

    def _count(self, piece: bytes, *, is_last: bool) -> None:
        """Raise RuntimeError for a body that is longer or shorter than its head says.

        Uvicorn then closes the connection: nothing is taken for the next answer.
        """
        if self._missing is not None:
            self._missing -= len(piece)
            if self._missing < 0 or (is_last and self._missing):
                raise RuntimeError("The body of the answer is not as long as it says.")

    def _end(self) -> None:
        """Free a caller's connection for its next request, or close it."""
        cycle = self._cycle
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()


def _call_with_writer(
    app: ASGI3Application,
    cycle: RequestResponseCycle,
    scope: Scope,
    receive: ASGIReceiveCallable,
    _: ASGISendCallable,
) -> Awaitable[None]:
    """Call an ASGI application whose answer an AnswerWriter writes."""
    return app(scope, receive, AnswerWriter(cycle).send)


def _head(status: int, headers: list[Header]) -> bytes:
    """Write an answer's status line and headers; raise RuntimeError for bad ones."""
    names = b"".join([name for name, _ in headers])
    values = b"".join([value for _, value in headers])
    if HEADER_RE.search(names) or HEADER_VALUE_RE.search(values):
        _refuse(headers)
    line = STATUS_LINE.get(status) or b"HTTP/1.1 %d \r\n" % status
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"".join([line, *lines, b"\r\n"])


def _refuse(headers: list[Header]) -> NoReturn:
    """Raise RuntimeError for the first header of an answer that HTTP does not allow."""
    name = next(
        name
        for name, value in headers
        if HEADER_RE.search(name) or HEADER_VALUE_RE.search(value)
    )
    raise RuntimeError(f"The header {name!r:.60} of the answer is not valid.")


def _problem(reason: str) -> bytes:
    """Write the whole answer to what is no HTTP: a problem (RFC 9457)."""
    status = HTTPStatus.BAD_REQUEST
    problem = {
        "type": "about:blank",
        "title": status.phrase,
        "status": status,
        "detail": f"{reason} {REMEDY}",
    }
    body = json.dumps(problem).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    return _head(status, headers) + body


def _reason(error: httptools.HttpParserError) -> str:
    """Say what is wrong with a request that httptools refused."""
    if isinstance(error.__context__, NotHttp):
        return str(error.__context__)
    return "Invalid HTTP request received."
