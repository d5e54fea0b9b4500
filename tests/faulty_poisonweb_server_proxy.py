"""A loopback HTTP proxy before a server, which makes one mistake of our choice."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

ROOT = "/api/v1"
NOT_PASSED_ON = {"transfer-encoding", "content-length", "connection", "host"}


@dataclass(kw_only=True)
class ClientRequest:
    """A request on its way; its members are for changing."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def concerns(self, path: str) -> bool:
        return urlsplit(self.path).path.startswith(ROOT + path)


@dataclass(kw_only=True)
class ServerAnswer:
    """An answer on its way back; its members are for changing."""

    request: ClientRequest
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """What is done to requests, to answers, and to the events of a stream.

    An event is its text; None instead of it leaves it out.
    """

    on_request: Callable[[ClientRequest], None] = lambda _: None
    answered: Callable[[ServerAnswer], None] = lambda _: None
    event: Callable[[str], str | None] = lambda text: text


NOTHING = Mistake()


@contextmanager
def erring(url: str, mistake: Mistake) -> Iterator[str]:
    """Pass everything on to the server at `url`, with the mistake; yield our url."""
    proxy = _Proxy(url, mistake)
    serving = threading.Thread(target=proxy.serve_forever, args=(0.01,))
    serving.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_address[1]}"
    finally:
        proxy.shutdown()
        serving.join()
        proxy.end_streams()
        proxy.server_close()


class _Proxy(ThreadingHTTPServer):
    def __init__(self, url: str, mistake: Mistake) -> None:
        self.there = urlsplit(url).netloc
        self.mistake = mistake
        self._streams: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    @contextmanager
    def streaming(self, link: socket.socket) -> Iterator[None]:
        self._streams.add(link)
        try:
            yield
        finally:
            self._streams.discard(link)

    def end_streams(self) -> None:
        for link in list(self._streams):
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxy

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self._pass_on()

    def do_POST(self) -> None:
        self._pass_on()

    def do_DELETE(self) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        self.close_connection = True
        request = ClientRequest(
            method=self.command,
            path=self.path,
            headers=_passed_on(self.headers.items()),
            body=self.rfile.read(int(self.headers.get("Content-Length") or 0)),
        )
        self.server.mistake.on_request(request)
        there = http.client.HTTPConnection(self.server.there)
        try:
            there.connect()
            link = there.sock
            there.request(request.method, request.path, request.body, request.headers)
            with self.server.streaming(link), there.getresponse() as response:
                self._answer(request, response)
        finally:
            there.close()

    def _answer(
        self, request: ClientRequest, response: http.client.HTTPResponse
    ) -> None:
        if response.headers.get_content_type() == "text/event-stream":
            self._stream(response)
            return
        answer = ServerAnswer(
            request=request,
            status=response.status,
            headers=_passed_on(response.getheaders()),
            body=response.read(),
        )
        self.server.mistake.answered(answer)
        self._begin(
            answer.status,
            {**answer.headers, "Content-Length": str(len(answer.body))},
        )
        self.wfile.write(answer.body)

    def _stream(self, response: http.client.HTTPResponse) -> None:
        self._begin(response.status, _passed_on(response.getheaders()))
        rest = b""
        with suppress(OSError, http.client.HTTPException):
            while piece := response.read1(65_536):
                *events, rest = (rest + piece).split(b"\n\n")
                for event in events:
                    text = self.server.mistake.event(event.decode())
                    if text is not None:
                        self.wfile.write(f"{text}\n\n".encode())

    def _begin(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()


def _passed_on(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in NOT_PASSED_ON}
