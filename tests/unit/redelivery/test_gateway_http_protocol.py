"""What callers of the gateway may send as HTTP, and how its answers are written."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
import uvicorn

from poisonweb import gateway_http_protocol, request_arrival_timeout
from poisonweb.gateway_http_protocol import GatewayProtocol
from tests.waiting import wait_until

HOST = b"Host: x\r\n"
GET = b"GET /a HTTP/1.1\r\n"
POST = b"POST /a HTTP/1.1\r\n" + HOST
CHUNKED = b"Transfer-Encoding: chunked\r\n"
END = b"GET /end HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class ScriptedApplication:
    """Stores requests; answers `soon` with the status and headers that a test sets."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.status = HTTPStatus.OK
        self.headers: list[tuple[bytes, bytes]] = []
        self.reads_first = True
        self.pieces = [b"so", b"on"]
        self.reads_at_all = True
        self.has_answered = False
        self.may_answer = threading.Event()
        self.may_answer.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = {
            "method": scope["method"],
            "path": scope["raw_path"],
            "query": scope["query_string"],
            "headers": scope["state"]["raw_headers"],
            "body": b"",
        }
        if not self.reads_first:
            self.requests.append(request)
            await self._answer(send)
        while self.reads_at_all:
            message = await receive()
            if message["type"] != "http.request":
                return
            request["body"] += message["body"]
            if not message["more_body"]:
                break
        if self.reads_first:
            self.requests.append(request)
            await self._answer(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _answer(self, send: Any) -> None:
        """Send all of an answer but its end."""
        await asyncio.to_thread(self.may_answer.wait, 30)
        start = {"type": "http.response.start", "status": self.status}
        await send({**start, "headers": self.headers})
        for piece in self.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        self.has_answered = True


class GatewayProtocolServer(uvicorn.Server):
    """A server for all tests, each with an application of its own."""

    def __init__(self) -> None:
        config = uvicorn.Config(
            self._call,
            http=GatewayProtocol,
            loop="uvloop",
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            server_header=False,
            date_header=False,
        )
        super().__init__(config)
        self.application = ScriptedApplication()

    async def _call(self, scope: Any, receive: Any, send: Any) -> None:
        await self.application(scope, receive, send)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[GatewayProtocolServer, int]]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = GatewayProtocolServer()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    wait_until(lambda: server.started)
    yield server, listener.getsockname()[1]
    server.should_exit = True
    thread.join()
    listener.close()


@pytest.fixture
def application(server: tuple[GatewayProtocolServer, int]) -> ScriptedApplication:
    server[0].application = ScriptedApplication()
    return server[0].application


@pytest.fixture
def port(server: tuple[GatewayProtocolServer, int]) -> int:
    return server[1]


def exchange(port: int, *pieces: bytes) -> bytes:
    """Send the pieces, each as a packet of its own; read until the server closes."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        for piece in pieces:
            line.sendall(piece)
        while data := line.recv(65536):
            answer += data
    return answer


def ask(line: socket.socket, request: bytes, *, until: bytes) -> bytes:
    """Send a request on an open connection; read its answer up to these bytes."""
    line.sendall(request)
    answer = b""
    while not answer.endswith(until):
        data = line.recv(65536)
        assert data, answer
        answer += data
    return answer


REFUSED = {
    "no HTTP": b"no http\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
    "no method": b" /a HTTP/1.1\r\n" + HOST + b"\r\n",
    "a method that is no token": b"G(T /a HTTP/1.1\r\n" + HOST + b"\r\n",
    "a method without end": b"G" * 33,
    "an unfinished tunnel": b"CONNECT",
    "HTTP/2 without its preface": b"GET /a HTTP/2.0\r\n" + HOST + b"\r\n",
    "HTTP/0.9 by name": b"GET /a HTTP/0.9\r\n" + HOST + b"\r\n",
    "HTTP/3": b"GET /a HTTP/3.0\r\n" + HOST + b"\r\n",
    "no Host": GET + b"\r\n",
    "two Hosts": GET + HOST + HOST + b"\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /a\r\n\r\n",
    "a blank before the colon": GET + b"Host : x\r\n\r\n",
    "a NUL in a value": GET + HOST + b"A: b\0c\r\n\r\n",
    "a lone CR in a value": GET + HOST + b"A: b\rc\r\n\r\n",
    "a lone LF behind the head": GET + HOST + b"A: b\n\n",
    "a folded header": GET + HOST + b"A: b\r\n\tX-Evil: c\r\n\r\n",
    "a fragment and a tab in the target": b"GET /a\t#b HTTP/1.1\r\n" + HOST + b"\r\n",
    "bytes in the target": b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n",
    "a tunnel to a host": b"CONNECT x:443 HTTP/1.1\r\n" + HOST + b"\r\n",
    "a tunnel": b"CONNECT /a HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\n\r\na",
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a list of lengths": POST + b"Content-Length: 1, 1\r\n\r\na",
    "a signed length": POST + b"Content-Length: +1\r\n\r\na",
    "a length of hexadecimal digits": POST + b"Content-Length: 0x1\r\n\r\na",
    "a length and chunks": POST + CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
    "another coding": POST + b"Transfer-Encoding: gzip\r\n\r\n",
    "a coding before chunks": POST
    + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunks twice": POST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
    "a blank in the coding": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST /a HTTP/1.0\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "a chunk of no length": POST + CHUNKED + b"\r\nz\r\n\r\n",
    "a chunk of negative length": POST + CHUNKED + b"\r\n-1\r\n\r\n",
    "a chunk that is longer than it says": POST + CHUNKED + b"\r\n1\r\nab\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("request_", REFUSED.values(), ids=list(REFUSED))
def test_what_is_no_valid_http_is_refused_by_a_problem(
    application: ScriptedApplication, port: int, request_: bytes
) -> None:
    head, _, body = exchange(port, request_).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    problem = json.loads(body)
    assert (problem["status"], problem["title"]) == (400, "Bad Request")
    assert problem["detail"].endswith("Check its first line, headers and length.")
    assert application.requests == []


@pytest.mark.parametrize(
    ("beginning", "endless"),
    [
        (b"", b"\r\n"),
        (GET + b"A: ", b"b"),
        (GET, b"A: b\r\n"),
        (POST + CHUNKED + b"\r\n1;a=", b"b"),
        (POST + CHUNKED + b"\r\n1\r\na\r\n0\r\nA: ", b"b"),
    ],
    ids=["blank lines", "a header", "headers", "a chunk's extension", "a trailer"],
)
def test_what_has_no_end_is_refused(
    application: ScriptedApplication,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    beginning: bytes,
    endless: bytes,
) -> None:
    monkeypatch.setattr(gateway_http_protocol, "LINGER_SECONDS", 60.0)
    megabyte = endless * (2**20 // len(endless))

    answer = exchange(port, beginning + megabyte)

    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n"), answer[:80]
    assert application.requests == []


def test_a_request_comes_as_it_is(application: ScriptedApplication, port: int) -> None:
    headers = [
        (b"hOST", b"x"),
        (b"X-Twice", b"1"),
        (b"x-TWICE", b" 2 ".strip()),
        (b"X-Bytes", b"\xff\xe4"),
        (b"X-Empty", b""),
        (b"Connection", b"close"),
        (b"Content-Length", b"3"),
    ]
    lines = b"".join(b"%b: \t%b \t\r\n" % header for header in headers)

    exchange(port, b"PROPFIND //a/%2e?b=#c?d HTTP/1.1\r\n" + lines + b"\r\n", b"a\0b")

    (request,) = application.requests
    assert request == {
        "method": "PROPFIND",
        "path": b"//a/%2e",
        "query": b"b=#c?d",
        "headers": headers,
        "body": b"a\0b",
    }


@pytest.mark.parametrize(
    "method",
    [b"GET", b"purge", b"FROB", b"M-SEARCH", b"VERSION-CONTROL", b"!", b"HEAD"],
)
def test_any_method_is_taken_whole_or_in_pieces(
    application: ScriptedApplication, port: int, method: bytes
) -> None:
    rest = b" /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

    exchange(port, method + rest)
    exchange(port, *(bytes([byte]) for byte in b"\r\n" + method + rest))

    methods = [request["method"] for request in application.requests]
    assert methods == [method.decode()] * 2


def test_each_request_of_a_connection_has_its_own_method(
    application: ScriptedApplication, port: int
) -> None:
    methods = [b"GET", b"purge", b"PUT"]

    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        for method in methods:
            ask(line, method + b" /a HTTP/1.1\r\n" + HOST + b"\r\n", until=b"0\r\n\r\n")

    assert [request["method"].encode() for request in application.requests] == methods


def test_a_line_end_behind_a_body_is_ignored(
    application: ScriptedApplication, port: int
) -> None:
    body = b"Content-Length: 1\r\n\r\na\r\n"

    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        ask(line, POST + body, until=b"0\r\n\r\n")
        ask(line, END, until=b"0\r\n\r\n")

    assert [request["path"] for request in application.requests] == [b"/a", b"/end"]


def test_headers_behind_a_body_are_ignored(
    application: ScriptedApplication, port: int
) -> None:
    body = b"\r\n3;x=y\r\nabc\r\n0\r\nX-Poisonweb-Key: k\r\n\r\n"

    exchange(port, POST + b"Connection: close\r\n" + CHUNKED + body)

    (request,) = application.requests
    names = [name for name, _ in request["headers"]]
    assert names == [b"Host", b"Connection", b"Transfer-Encoding"]
    assert request["body"] == b"abc"


def test_a_request_may_come_byte_by_byte(
    application: ScriptedApplication, port: int
) -> None:
    request = POST + b"Connection: close\r\nContent-Length: 2\r\n\r\nab"

    exchange(port, *(bytes([byte]) for byte in request))

    assert [each["body"] for each in application.requests] == [b"ab"]


def test_an_answer_is_written_as_it_is(
    application: ScriptedApplication, port: int
) -> None:
    application.headers = [(b"X-CASE", b"\xff"), (b"x-case", b"2"), (b"Empty", b"")]

    answer = exchange(port, END)

    assert answer == (
        b"HTTP/1.1 200 OK\r\nX-CASE: \xff\r\nx-case: 2\r\nEmpty: \r\n"
        b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        b"2\r\nso\r\n2\r\non\r\n0\r\n\r\n"
    )


def test_an_answer_of_known_length_leaves_its_connection_open(
    application: ScriptedApplication, port: int
) -> None:
    application.headers = [(b"Content-Length", b"4")]

    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        answer = ask(line, GET + HOST + b"\r\n", until=b"soon")
        answer += ask(line, END, until=b"soon")

    one = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n"
    assert answer == one + b"\r\nsoon" + one + b"connection: close\r\n\r\nsoon"


@pytest.mark.parametrize(
    ("method", "status"), [(b"HEAD", 200), (b"GET", 204), (b"GET", 304)]
)
def test_an_answer_without_a_body_has_none(
    application: ScriptedApplication, port: int, method: bytes, status: int
) -> None:
    application.status = HTTPStatus(status)
    application.headers = [(b"content-length", b"4")]

    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        answer = b"".join(
            ask(line, request.replace(b"GET", method), until=b"\r\n\r\n")
            for request in (GET + HOST + b"\r\n", END)
        )

    heads = answer.split(b"\r\n\r\n")
    assert [head[:12] for head in heads] == [*[b"HTTP/1.1 %d" % status] * 2, b""]


def test_the_end_of_the_connection_ends_an_answer_of_http_1_0(
    application: ScriptedApplication, port: int
) -> None:
    answer = exchange(port, b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")

    assert answer == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nsoon"


def test_a_status_without_a_name_is_passed_on(
    application: ScriptedApplication, port: int
) -> None:
    application.status = 799  # type: ignore[assignment] # a back end may say so

    assert exchange(port, END).startswith(b"HTTP/1.1 799 \r\n")


def test_a_request_that_waits_for_permission_gets_it(
    application: ScriptedApplication, port: int
) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.sendall(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert line.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        ask(line, b"ab", until=b"0\r\n\r\n")

    assert [request["body"] for request in application.requests] == [b"ab"]


def test_http_1_0_knows_no_permission(
    application: ScriptedApplication, port: int
) -> None:
    head = b"POST /a HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"

    assert exchange(port, head, b"ab").startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    "body",
    [
        (b"\r\n",),
        (b"Content-Length: 5\r\n\r\nhello",),
        (b"Content-Length: 5\r\n\r\n", b"hel", b"lo"),
        (CHUNKED + b"\r\n5\r\nhello\r\n0\r\n\r\n",),
        (CHUNKED + b"\r\n", b"3\r\nhel\r\n2\r\nlo\r\n", b"0\r\n\r\n"),
    ],
    ids=["none", "of a length", "in packets", "in a chunk", "in chunks and packets"],
)
def test_a_request_that_offers_another_protocol_is_taken_as_any_other(
    application: ScriptedApplication, port: int, body: tuple[bytes, ...]
) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"

    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        for _ in range(2):
            line.sendall(POST + offer + body[0])
            for piece in body[1:]:
                line.sendall(piece)
            answer = ask(line, b"", until=b"0\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        ask(line, END, until=b"0\r\n\r\n")

    content = b"" if body == (b"\r\n",) else b"hello"
    bodies = [request["body"] for request in application.requests]
    assert bodies == [content, content, b""]
    assert [each["path"] for each in application.requests] == [b"/a", b"/a", b"/end"]


def test_a_request_that_does_not_wait_for_the_answer_before_is_not_taken(
    application: ScriptedApplication, port: int
) -> None:
    many = b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(2_000))

    answer = exchange(port, many)

    assert [request["path"] for request in application.requests] == [b"/0"]
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert b"connection: close\r\n" in answer
    assert answer.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(
    "header",
    [(b"a", b"b\r\nSet-Cookie: c"), (b"a: b", b"c"), (b"a", b"b\0"), (b"a\r\n", b"b")],
)
def test_an_answer_with_a_header_that_is_none_is_not_written(
    application: ScriptedApplication, port: int, header: tuple[bytes, bytes]
) -> None:
    application.headers = [header]

    answer = exchange(port, GET + HOST + b"\r\n")

    assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert b"Set-Cookie" not in answer


@pytest.mark.parametrize("length", [b"3", b"5"])
def test_an_answer_that_is_not_as_long_as_it_says_ends_its_connection(
    application: ScriptedApplication,
    port: int,
    length: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    application.headers = [(b"content-length", length)]

    answer = exchange(port, GET + HOST + b"\r\n")

    assert answer.endswith(b"so" if length == b"3" else b"soon")
    assert "The body of the answer is not as long as it says." in caplog.text


@pytest.mark.parametrize("length", [b"1", b"2"], ids=["whole", "half"])
def test_a_body_behind_its_answer_keeps_no_connection_open(
    application: ScriptedApplication,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    length: bytes,
) -> None:
    monkeypatch.setattr(request_arrival_timeout, "SECONDS", 0.3)
    application.reads_first = application.reads_at_all = False

    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        head = POST + b"Content-Length: " + length + b"\r\n\r\n"
        ask(line, head, until=b"0\r\n\r\n")
        line.sendall(b"a")
        line.settimeout(4)  # before the time in which an idle connection ends
        answer = line.recv(100)

    # A 408 would be taken for the answer to a request that has one.
    assert answer == b""


def test_a_caller_that_takes_nothing_of_its_answer_loses_its_connection(
    server: tuple[GatewayProtocolServer, int],
    application: ScriptedApplication,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_http_protocol, "SLOW_READER_SECONDS", 0.3)
    application.pieces = [b"x" * 2**24] * 2
    connections = server[0].server_state.connections

    with socket.create_connection(("127.0.0.1", server[1]), timeout=30) as line:
        line.sendall(GET + HOST + b"\r\n")
        wait_until(lambda: application.requests)
        wait_until(lambda: not connections)


def test_a_refused_caller_that_hangs_up_causes_no_error(
    server: tuple[GatewayProtocolServer, int],
    application: ScriptedApplication,
    caplog: pytest.LogCaptureFixture,
) -> None:
    connections = server[0].server_state.connections
    with socket.create_connection(("127.0.0.1", server[1]), timeout=30) as line:
        line.sendall(POST + CHUNKED + b"Expect: 100-continue\r\n\r\nno chunk\r\n")
        assert line.recv(12) == b"HTTP/1.1 400"
        # A close with unread bytes would be a reset, not an end.
        while line.recv(65536):
            pass
    wait_until(lambda: not connections)

    assert application.requests == []
    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == []


def test_what_follows_a_request_and_is_no_http_ends_the_connection_behind_its_answer(
    application: ScriptedApplication, port: int
) -> None:
    application.may_answer.clear()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.sendall(GET + HOST + b"\r\n")
        wait_until(lambda: application.requests)
        line.sendall(b"no http\r\n\r\n" + END)
        application.may_answer.set()
        answer = b""
        while data := line.recv(65536):
            answer += data

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close\r\n" in answer
    assert answer.endswith(b"0\r\n\r\n")
    assert answer.count(b"HTTP/1.1") == 1
    assert len(application.requests) == 1


def test_a_body_that_is_no_http_is_answered_once(
    application: ScriptedApplication, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    application.reads_first = False
    application.may_answer.clear()
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.sendall(POST + CHUNKED + b"\r\n1\r\na\r\n")
        wait_until(lambda: application.requests)
        line.sendall(b"no chunk\r\n")
        answer += line.recv(65536)
        application.may_answer.set()
        wait_until(lambda: application.has_answered)
        while data := line.recv(65536):
            answer += data

    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.count(b"HTTP/1.1") == 1
    assert "Exception in ASGI application" not in caplog.text


def test_an_answer_that_is_under_way_gives_no_permission(
    application: ScriptedApplication, port: int
) -> None:
    application.reads_first = False

    answer = exchange(
        *(port, POST + b"Connection: close\r\nExpect: 100-continue\r\n"),
        *(b"Content-Length: 2\r\n\r\n", b"ab"),
    )

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.count(b"HTTP/1.1") == 1
