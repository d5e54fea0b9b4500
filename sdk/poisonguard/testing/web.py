"""The double on HTTP: a thread for each connection, as few as a test has."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from poisonguard.contract import Invalid
from poisonguard.skipping import skip_list_line_format
from poisonguard.testing.fake_server_skip_list import Json

if TYPE_CHECKING:
    from poisonguard.testing.fake_poisonweb_api import Double

MOST_MEMBERS = 1_000
# The list of members that a call takes.
MEMBERS = {
    "/failures": "failures",
    "/confirmations": "confirmations",
    "/counters": "counters",
    "/skips/applied": "applied",
    "/positions/settle": "updates",
}


class Problem(Exception):
    """A request that is answered by a problem of this status."""

    def __init__(
        self, status: HTTPStatus, detail: str, *, pointer: str | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.whole: Json = {
            "type": "about:blank",
            "title": status.phrase,
            "status": status.value,
            "detail": detail,
        }
        if pointer is not None:
            self.whole["errors"] = [{"pointer": pointer, "detail": detail}]


class Web(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 2_048

    def __init__(self, address: tuple[str, int], double: Double) -> None:
        self.double = double
        self._open: set[Any] = set()
        super().__init__(address, Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, and note the connection as open."""
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, and forget it."""
        self._open.discard(request)
        super().shutdown_request(request)

    def break_connections(self) -> None:
        """Shut down every open connection, as a killed process would."""
        for request in list(self._open):
            # Its thread may well be ending it at this moment.
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log no error of a connection: many tests are about consumers that go away."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Web

    def log_message(self, *_: object) -> None:
        """Log no line for a request: `Double.requests` has them."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return the Date header by the double's clock, which a test may shift."""
        double = self.server.double
        if double.date_of is not None:
            return double.date_of()
        shifted = (timestamp or time.time()) + double.date_shift
        return super().date_time_string(shifted)

    def do_GET(self) -> None:
        """Answer a GET request to the fake server."""
        self._serve()

    def do_POST(self) -> None:
        """Answer a POST request to the fake server."""
        self._serve()

    def do_DELETE(self) -> None:
        """Answer a DELETE request to the fake server."""
        self._serve()

    def _serve(self) -> None:
        """Read a request to the fake server and answer it, a bad one by a problem."""
        whole = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            self._answer_to(whole)
        except Problem as problem:
            self._problem(problem)

    def _answer_to(self, whole: bytes) -> None:
        """Record a request to the fake server, and answer it by its path.

        First check faults and API key.
        """
        double = self.server.double
        body, trouble = _read(whole, self.headers.get("Content-Encoding"))
        with double.changed:
            double.requests.append((self.command, self.path, body))
            double.headers.append({k.lower(): v for k, v in self.headers.items()})
            double.changed.notify_all()
        address = urlsplit(self.path)
        path, query = address.path.removeprefix("/api/v1"), parse_qsl(address.query)
        fault = double.faults.next(path)
        if fault:
            raise _WithHeaders(HTTPStatus(fault.status), fault.headers)
        if self.headers.get("Authorization") != f"Bearer {double.key}":
            raise _WithHeaders(HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": "Bearer"})
        if trouble is not None:
            raise trouble
        if path == "/skips/stream":
            self._stream(query)
        elif path.startswith("/poisons/") and path.endswith("/body"):
            self._answer(HTTPStatus.OK, self._body_of(path))
        else:
            self._call(path, query, body)

    def _call(self, path: str, query: list[tuple[str, str]], body: Json) -> None:
        """Make a fake server's call once per idempotency key, and send its answer."""
        double = self.server.double
        if path in double.forged:
            self._answer(HTTPStatus.OK, _whole(double.forged[path]))
            return
        _check_members(path, body)
        key = self.headers.get("Idempotency-Key")
        status, answer, is_repeated = double.once(
            key, (self.command, path, body), lambda: self._called(path, query, body)
        )
        if self.command == "POST" and double.faults.loses_answer():
            self.close_connection = True
            return
        takes_lines = skip_list_line_format.MEDIA_TYPE in self.headers.get("Accept", "")
        if path == "/skips" and takes_lines and double.has_lines:
            whole = gzip.compress(b"".join(lines_of(answer)))
            compressed = {"Content-Encoding": "gzip"}
            self._answer(
                status, whole, compressed, kind=skip_list_line_format.MEDIA_TYPE
            )
            return
        replayed = {"Idempotent-Replayed": "true"} if is_repeated else {}
        self._answer(status, _whole(answer), replayed)

    def _body_of(self, path: str) -> bytes:
        double = self.server.double
        with double.changed:
            return double.reports.body(int(path.split("/")[2]))

    def _called(
        self, path: str, query: list[tuple[str, str]], body: Json
    ) -> tuple[HTTPStatus, Json]:
        """Call the fake server by a request; return status and answer.

        Raise Problem for what it refuses.
        """
        double = self.server.double
        try:
            answer = double.call(self.command, path, query, body)
        except LookupError:
            raise Problem(HTTPStatus.NOT_FOUND, "there is no such thing") from None
        except Invalid as why:
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY, why.detail, pointer=why.pointer
            ) from None
        if "results" in answer:
            answer["results"] = [double.rewords(one) for one in answer["results"]]
        is_new = (self.command, path) == ("POST", "/skips")
        return (HTTPStatus.CREATED if is_new else HTTPStatus.OK), answer

    def _answer(
        self,
        status: HTTPStatus,
        whole: bytes,
        headers: dict[str, str] | None = None,
        *,
        kind: str = "application/json",
    ) -> None:
        """Send a whole answer to a request to the fake server."""
        self.send_response(status)
        for name, value in {"Content-Type": kind, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        self.wfile.write(whole)

    def _problem(self, problem: Problem) -> None:
        """Send a problem as application/problem+json to the fake server's client."""
        self._answer(
            problem.status,
            json.dumps(problem.whole).encode(),
            getattr(problem, "headers", {}),
            kind="application/problem+json",
        )

    def _stream(self, query: list[tuple[str, str]]) -> None:
        """Send the events of the fake skip list until they end or the consumer goes."""
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        after = self.headers.get("Last-Event-ID") or dict(query).get("after")
        topics = [value for name, value in query if name == "topic"]
        group = dict(query).get("consumer_group")
        events = self.server.double.stream.events(topics, group, after)
        try:
            for text in events:
                self.wfile.write(text.encode())
        finally:
            events.close()


class _WithHeaders(Problem):
    def __init__(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        super().__init__(status, "so the test wants, or no key is known by this name")
        self.headers = headers


def lines_of(snapshot: Json) -> Iterator[bytes]:
    """Yield the fake server's snapshot of skips as lines."""
    return skip_list_line_format.lines(
        epoch=snapshot["epoch"],
        revision=snapshot["revision"],
        skips=(_row(each, skip_list_line_format.COLUMNS) for each in snapshot["skips"]),
        suspects=(
            _row(each, skip_list_line_format.SUSPECT_COLUMNS)
            for each in snapshot.get("suspects", [])
        ),
    )


def _row(skip: Json, names: tuple[str, ...]) -> list[Any]:
    """Return a skip of the fake server as a row of its snapshot with these columns."""
    times = {name: _microseconds(skip.get(name)) for name in ("expires_at", "at")}
    flat = {**skip, **skip["matcher"], **times}
    return [flat.get(name) for name in names]


def _microseconds(text: str | None) -> int | None:
    """Convert a fake skip's ISO 8601 time to microseconds since 1970; None for None."""
    if text is None:
        return None
    return skip_list_line_format.microseconds(datetime.fromisoformat(text))


def _whole(answer: Any) -> bytes:
    """Return an answer's bytes as they are, anything else as JSON."""
    return answer if isinstance(answer, bytes) else json.dumps(answer).encode()


def _read(whole: bytes, encoding: str | None) -> tuple[Json, Problem | None]:
    """Parse a body sent to the fake server; return {} and the problem if unreadable."""
    try:
        text = gzip.decompress(whole) if encoding == "gzip" else whole
        body = json.loads(text or b"{}")
    except ValueError as why:
        return {}, Problem(HTTPStatus.BAD_REQUEST, f"this is no JSON: {why}")
    if not isinstance(body, dict):
        return {}, Problem(HTTPStatus.BAD_REQUEST, "send a JSON object")
    return body, None


def _check_members(path: str, body: Json) -> None:
    """Raise Problem unless a batch for the fake server has its list.

    Also raise it for too long a list.
    """
    name = MEMBERS.get(path)
    if name is None:
        return
    members = body.get(name)
    if not isinstance(members, list):
        raise Problem(HTTPStatus.BAD_REQUEST, f"{name} is a list", pointer=f"/{name}")
    if len(members) > MOST_MEMBERS:
        detail = f"{name} has more than {MOST_MEMBERS} members"
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
