"""A gateway that listens, in a thread of the test, and its callers."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from django.test import override_settings

from apps.core import clock
from apps.core.actor import Actor
from apps.redelivery.models import Endpoint
from apps.team import services as team
from apps.team.rights import ALL_TOPICS, Scope
from poisonweb.gateway import GatewayServer
from tests.integration.redelivery import endpoint_and_delivery_builders as builders
from tests.unit.redelivery.scripted_back_end import (
    LOOPBACK,
    Script,
    ScriptedBackEnd,
    back_end,
)
from tests.waiting import wait_until

SECONDS = 60
_numbers = count(1)


@dataclass(frozen=True, kw_only=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.body)
        return document

    def header(self, name: str) -> str | None:
        return next((v for n, v in self.headers if n.lower() == name), None)


@dataclass(kw_only=True)
class Gateway:
    server: GatewayServer
    port: int
    secret: str

    def call(
        self,
        path: str,
        *,
        method: str = "GET",
        body: bytes | Iterator[bytes] = b"",
        secret: str | None = None,
        **headers: str,
    ) -> Answer:
        """Call the gateway; names of headers have _ for -."""
        connection = self.connect()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(
                method,
                path,
                body=body or None,
                headers={"X-Poisonweb-Key": secret or self.secret, **named},
                encode_chunked=not isinstance(body, bytes),
            )
            answer = connection.getresponse()
            return Answer(
                status=answer.status, headers=answer.getheaders(), body=answer.read()
            )
        finally:
            connection.close()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(LOOPBACK, self.port, timeout=SECONDS)

    def open(self, head: str, body: bytes = b"") -> socket.socket:
        """Send a request to the gateway as written, with `KEY` replaced by the key."""
        sock = socket.create_connection((LOOPBACK, self.port), timeout=SECONDS)
        text = head.replace("KEY", self.secret).replace("\n", "\r\n")
        sock.sendall(text.encode("latin-1") + body)
        return sock

    def raw(
        self, head: str, body: bytes = b"", *, ends: bool = False
    ) -> tuple[int, dict[str, Any]]:
        """Send a request to the gateway; return status and document of its refusal."""
        data = b""
        with self.open(head, body) as sock:
            if ends:
                sock.shutdown(socket.SHUT_WR)
            while piece := sock.recv(65536):
                data += piece
        top, _, content = data.partition(b"\r\n\r\n")
        assert b"application/problem+json" in top, data
        return int(top.split()[1]), json.loads(content)


@contextmanager
def running_gateway(**settings: Any) -> Iterator[Gateway]:
    """Run a gateway whose endpoints may be on this machine; make a key for it."""
    with override_settings(POISONWEB_ENDPOINT_HOSTS=(LOOPBACK,), **settings):
        listener = socket.create_server((LOOPBACK, 0), backlog=256)
        server = GatewayServer(host=LOOPBACK, port=0)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield Gateway(
                server=server,
                port=listener.getsockname()[1],
                secret=key(),
            )
        finally:
            server.should_exit = True
            thread.join()
            listener.close()


def key(
    *scopes: Scope, topics: tuple[str, ...] = ALL_TOPICS, name: str | None = None
) -> str:
    """Make a key that may call endpoints, or has other rights; give its secret."""
    return team.create_api_key(
        name=name or f"caller-{next(_numbers)}",
        scopes=scopes or (Scope.GATEWAY_CALL,),
        topics=topics,
        actor=Actor.system("test"),
        now=clock.now(),
    ).secret


@contextmanager
def endpoint_of(
    script: Script, *, base_path: str = "", **settings: Any
) -> Iterator[tuple[Endpoint, ScriptedBackEnd]]:
    """Run a back end, and make an endpoint that calls it."""
    with (
        override_settings(POISONWEB_ENDPOINT_HOSTS=(LOOPBACK,)),
        back_end(script) as server,
    ):
        endpoint = builders.endpoint(
            f"stock-quote-{next(_numbers)}",
            target=f"{server.url}{base_path}",
            **settings,
        )
        yield endpoint, server


def ok(body: bytes = b"fine", *more: bytes, status: bytes = b"200 OK") -> bytes:
    """Return an answer of a back end with status 200."""
    lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *more, b"", b""]
    return b"\r\n".join(lines) + body
