"""The connection of a caller: its request, and the answer as it is written.

What the ASGI server tells beside the scope is in its `state`: the headers as they came
(`raw_headers`), and how to break the connection off (`abort`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from apps.brokers.adapter_contract import Header
from apps.redelivery.gateway.refusals import GatewayRefusal, busy
from apps.redelivery.gateway.soap_envelopes import SoapVersion

LINGER_SECONDS, LINGER_BYTES = 1.0, 4 * 1024 * 1024

AsgiScope = Mapping[str, Any]
AsgiMessage = Mapping[str, Any]
AsgiReceive = Callable[[], Awaitable[AsgiMessage]]
AsgiSend = Callable[[AsgiMessage], Awaitable[None]]


class CallerGone(Exception):
    """The caller closed the connection before its request was whole."""


class AnswerBrokenOff(Exception):
    """An answer ended too early: the server closes the connection."""


class BodyMemory:
    """Bytes of requests in memory, of all callers together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0

    def take(self, size: int) -> None:
        """Reserve memory for a request's bytes; raise GatewayRefusal without room."""
        if self._used + size > self._most:
            raise busy("The gateway holds too many large requests: try again.")
        self._used += size

    def give_back(self, size: int) -> None:
        self._used -= size


class CallerConnection:
    """One request of a caller; `memory` it takes is given back by `close`."""

    def __init__(
        self,
        scope: AsgiScope,
        receive: AsgiReceive,
        send: AsgiSend,
        *,
        memory: BodyMemory,
    ) -> None:
        state = scope.get("state") or {}
        self.method: str = scope["method"]
        self.raw_path: bytes = scope["raw_path"]
        self.query: bytes = scope["query_string"]
        self.address: str = (scope.get("client") or ("",))[0]
        self.headers: list[Header] = state.get("raw_headers") or scope["headers"]
        # The first of each name, which is in small letters here.
        self._values = {name.lower(): value for name, value in reversed(self.headers)}
        self.has_answer = False
        self._abort: Callable[[], None] | None = state.get("abort")
        self._receive = receive
        self._send = send
        self._memory = memory
        self._size = 0
        self._has_more = (
            b"content-length" in self._values or b"transfer-encoding" in self._values
        )
        self._departure: asyncio.Task[None] | None = None

    def header(self, name: bytes) -> bytes | None:
        """Return the value of the request's first header of this name, or None.

        The name is in small letters.
        """
        return self._values.get(name)

    async def read_body(self, limit: int) -> bytes:
        """Read the request's body; raise GatewayRefusal above the limit.

        Raises CallerGone where the caller hangs up. The server limits the time in which
        a request arrives.
        """
        self._check_length(limit)
        parts = list[bytes]()
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise CallerGone
            part: bytes = message.get("body", b"")
            if self._size + len(part) > limit:
                raise too_large(limit)
            self._memory.take(len(part))
            self._size += len(part)
            parts.append(part)
            self._has_more = bool(message.get("more_body"))
            if not self._has_more:
                return b"".join(parts)

    def close(self) -> None:
        """Give the request's memory back; stop waiting for the caller to hang up."""
        self._memory.give_back(self._size)
        self._size = 0
        if self._departure is not None:
            self._departure.cancel()

    async def answer(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Send the caller a whole answer that the gateway made."""
        length = (b"content-length", b"%d" % len(body))
        await self.begin(status, [*headers, length])
        await self.write(b"" if self.method == "HEAD" else body, is_last=True)

    async def refuse(
        self, refusal: GatewayRefusal, soap: SoapVersion | None = None
    ) -> None:
        """Send the caller a refusal, and throw the rest of the request away."""
        status, headers, body = refusal.message(soap)
        length = (b"content-length", b"%d" % len(body))
        await self.begin(status, [*headers, length, (b"connection", b"close")])
        await self.write(b"" if self.method == "HEAD" else body)
        await self._linger()
        await self.write(b"", is_last=True)

    def begin(self, status: int, headers: Sequence[Header]) -> Awaitable[None]:
        """Send the caller the status and headers that begin an answer."""
        self.has_answer = True
        return self._send(
            {"type": "http.response.start", "status": status, "headers": headers}
        )

    def write(self, piece: bytes, *, is_last: bool = False) -> Awaitable[None]:
        """Send the caller a piece of an answer's body, as soon as it takes that."""
        return self._send(
            {"type": "http.response.body", "body": piece, "more_body": not is_last}
        )

    def is_gone(self) -> bool:
        """Tell whether the caller hung up after its request."""
        if self._departure is None:
            self._departure = asyncio.create_task(self._await_departure())
        return self._departure.done()

    def break_off(self) -> None:
        """Break the caller's connection: its partial answer does not look whole."""
        if self._abort is None:
            raise AnswerBrokenOff
        self._abort()

    async def _linger(self) -> None:
        """Read what the caller still sends: unread bytes would lose the answer."""
        unread = LINGER_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while self._has_more and unread > 0:
                    message = await self._receive()
                    unread -= len(message.get("body", b""))
                    self._has_more = bool(message.get("more_body"))

    async def _await_departure(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def _check_length(self, limit: int) -> None:
        """Refuse a length that is too large, or given in two ways (RFC 9112, 6.1)."""
        length = self.header(b"content-length")
        if length is None:
            return
        if self.header(b"transfer-encoding") is not None:
            raise GatewayRefusal(
                status=HTTPStatus.BAD_REQUEST,
                detail="Send Content-Length or Transfer-Encoding, not both.",
            )
        if length.isdigit() and int(length[:20]) > limit:
            raise too_large(limit)


def too_large(limit: int) -> GatewayRefusal:
    """Return the refusal of a body above the limit."""
    return GatewayRefusal(
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        detail=f"A request here has at most {limit} bytes: send less, or raise"
        " POISONWEB_REQUEST_LIMIT.",
    )
