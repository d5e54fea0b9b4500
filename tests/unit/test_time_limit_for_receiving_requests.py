"""A request has to come whole within its time; its answer may take longer."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from poisonweb import request_arrival_timeout
from poisonweb.gateway_http_protocol import GatewayProtocol
from poisonweb.request_arrival_timeout import RequestTimeLimit
from poisonweb.request_limits import Receive, Scope, Send
from poisonweb.uvicorn_http_protocol import BoundedH11
from tests.waiting import wait_until

SECONDS, MINUTE = 0.5, 60.0
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
ENDLESS = HEAD[:-2] + b"A: b\r\n" * 50


class WaitingApplication:
    """Reads a request and answers when it may; keeps what it received."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.received: list[str] = []

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            self.received.append(message["type"])
            more = message.get("more_body", False)
        if self.received[-1] == "http.disconnect":
            return
        await self.may_answer.wait()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})


class ClockedServer(uvicorn.Server):
    """A server whose clock runs as any other, and can be moved on."""

    seconds = 0.0

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.loop.time = lambda: time.monotonic() + self.seconds  # type: ignore[method-assign]
        await super().serve(sockets)

    def go_on(self, seconds: float) -> None:
        """Let some time pass for a connection that it has by then."""
        wait_until(lambda: self.server_state.connections)
        asyncio.run_coroutine_threadsafe(self._move(seconds), self.loop).result()

    async def _move(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> WaitingApplication:
    monkeypatch.setattr(request_arrival_timeout, "SECONDS", SECONDS)
    return WaitingApplication()


@pytest.fixture(params=[BoundedH11, GatewayProtocol])
def server(
    application: WaitingApplication, request: pytest.FixtureRequest
) -> Iterator[ClockedServer]:
    config = uvicorn.Config(
        application,
        port=0,
        http=request.param,
        lifespan="off",
        log_config=None,
        timeout_keep_alive=3_600,
    )
    server = ClockedServer(config)
    thread = threading.Thread(target=asyncio.run, args=(server.serve(),))
    thread.start()
    wait_until(lambda: server.started)
    yield server
    server.should_exit = True
    thread.join()


@pytest.fixture
def port(server: ClockedServer) -> int:
    port: int = server.servers[0].sockets[0].getsockname()[1]
    return port


def answer(port: int, *pieces: bytes, pause: float = 0.0) -> bytes:
    """Send the pieces and read until the server closes, or has said `ok`."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        for piece in pieces:
            line.sendall(piece)
            time.sleep(pause)
        said = b""
        while not said.endswith(b"ok") and (piece := line.recv(1_000)):
            said += piece
        return said


@pytest.mark.parametrize("pieces", [(), (HEAD[:20],), (HEAD[:-2],)])
def test_half_a_head_is_waited_for_only_so_long(
    application: WaitingApplication, port: int, pieces: tuple[bytes, ...]
) -> None:
    began = time.monotonic()

    said = answer(port, *pieces)

    assert said.startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - began >= SECONDS * 0.9
    assert application.received == []


def test_half_a_body_is_waited_for_only_so_long(
    application: WaitingApplication, port: int
) -> None:
    half = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf"

    said = answer(port, half)

    assert said.startswith(b"HTTP/1.1 408 ")
    # The sender may read its answer before the application hears of the end.
    wait_until(lambda: len(application.received) >= 2)
    assert application.received == ["http.request", "http.disconnect"]


def test_a_request_that_trickles_gets_no_more_time(
    application: WaitingApplication, port: int
) -> None:
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        answer(port, *(bytes([byte]) for byte in ENDLESS), pause=SECONDS / 10)

    assert application.received == []


@pytest.mark.parametrize("offer", [b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"])
def test_an_answer_may_take_longer(
    application: WaitingApplication,
    server: ClockedServer,
    port: int,
    offer: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_arrival_timeout, "SECONDS", MINUTE)
    application.may_answer.clear()

    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.sendall(HEAD[:-2] + offer + b"\r\n")
        wait_until(lambda: application.received)
        server.go_on(3 * MINUTE)
        server.loop.call_soon_threadsafe(application.may_answer.set)

        assert _read(line).endswith(b"ok")


def test_the_second_request_of_a_connection_has_its_own_time(
    server: ClockedServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_arrival_timeout, "SECONDS", MINUTE)

    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        for _ in range(2):
            server.go_on(MINUTE * 0.6)
            line.sendall(HEAD)
            assert _read(line).endswith(b"ok")
        line.sendall(HEAD[:10])
        server.go_on(MINUTE)
        assert _read(line).startswith(b"HTTP/1.1 408 ")


def test_a_shorter_time_ends_though_a_longer_one_was_begun_before() -> None:
    async def begin_both() -> None:
        late = asyncio.Event()
        limit = RequestTimeLimit(asyncio.get_running_loop(), late.set)
        limit.start(MINUTE)
        limit.start(SECONDS)
        await asyncio.wait_for(late.wait(), MINUTE / 2)

    asyncio.run(begin_both())


def _read(line: Any) -> bytes:
    said = b""
    while not said.endswith(b"ok") and (piece := line.recv(1_000)):
        said += piece
    return said
