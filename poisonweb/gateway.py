"""Run the gateway: Uvicorn, with limits that its command line lacks.

It is a process of its own: no back end, however slow, keeps a page or a consumer
waiting.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from socket import SO_LINGER, SOL_SOCKET, socket
from typing import Any

import h11
import uvicorn
from django.db import connections

from apps.core.postgres_connections import IDLE_TRANSACTION, session_options
from apps.redelivery.gateway.application import GatewayApplication
from apps.redelivery.gateway.caller_connections import (
    AsgiReceive,
    AsgiScope,
    AsgiSend,
)
from poisonweb.costly_request_process import SWITCH_SECONDS, UVICORN
from poisonweb.uvicorn_http_protocol import BoundedH11, Event

# After this long a stop waits no more for back ends; soon after, not for callers.
CUT_SECONDS, STOP_SECONDS = 5.0, 10
# Larger ones are refused by the application, with a clear answer.
MOST_HEADER_BYTES = 256 * 1024
# A connection that is closed with unread bytes is reset, and its answer lost.
LINGER_SECONDS = 1.0
CONNECT_SECONDS = 2
STATEMENT_MILLISECONDS = 10_000


class GatewayH11(BoundedH11):
    """A connection that keeps the case of headers, and can be broken off."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The server cancels what is in its own set at the end of a stop: first tries
        # go on, and the application waits for them.
        self.tasks = set()
        self.app_state = dict(self.app_state)
        self.conn = _ConnectionWithRawHeaders(self.app_state)
        self._is_refused = False

    def connection_made(  # type: ignore[override] # as the parent class does
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        self.app_state["abort"] = self._abort

    def _abort(self) -> None:
        """Reset a caller's connection: any other end may look like that of the answer.

        A connection that is closing may have no socket any more.
        """
        if self.transport.is_closing():
            self.transport.abort()
            return
        linger_for_no_time = struct.pack("ii", 1, 0)
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(SOL_SOCKET, SO_LINGER, linger_for_no_time)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Ignore bytes that a refused caller still sends: so the answer arrives."""
        if not self._is_refused:
            super().data_received(data)

    def eof_received(self) -> None:
        """Refuse a request that ends before its declared length."""
        if self.conn.their_state is h11.SEND_BODY:
            super().data_received(b"")

    def send_400_response(self, message: str) -> None:
        """Answer what is no HTTP with a 400 problem; close the connection later."""
        self._is_refused = True
        # While an answer is being sent, only the connection can end.
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.close()
            return
        problem = {
            "type": "about:blank",
            "title": HTTPStatus.BAD_REQUEST.phrase,
            "status": HTTPStatus.BAD_REQUEST,
            "detail": f"{message} Check its first line, headers and length.",
        }
        body = json.dumps(problem).encode()
        head = h11.Response(
            status_code=HTTPStatus.BAD_REQUEST,
            reason=HTTPStatus.BAD_REQUEST.phrase,
            headers=[
                (b"content-type", b"application/problem+json"),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
            ],
        )
        self.transport.write(self.conn.send(head) or b"")
        self.transport.write(self.conn.send(h11.Data(data=body)) or b"")
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)


class _ConnectionWithRawHeaders(h11.Connection):
    """A connection that gives the headers of a request as they came.

    The head of an answer leaves with the first piece of its body: a packet of its own
    would wake the caller twice.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        super().__init__(h11.SERVER, MOST_HEADER_BYTES)
        self._state = state
        self._answer_head = b""

    def send(  # type: ignore[override] # its overloads say the same by event
        self, event: h11.Event
    ) -> bytes | None:
        """Return the bytes to send for an HTTP event; b"" for the head of an answer.

        The next event's bytes have the head before them.
        """
        data = super().send(event)
        if isinstance(event, h11.Response):
            self._answer_head = data or b""
            return b""
        if data is None or not self._answer_head:
            return data
        head, self._answer_head = self._answer_head, b""
        return head + data

    def next_event(self) -> Event:
        """Return the next HTTP event; put a request's raw headers into the state."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._state["raw_headers"] = event.headers.raw_items()
        return event


class GatewayServer(uvicorn.Server):
    """Runs the application in its event loop, and ends it after the last answer."""

    def __init__(self, *, host: str, port: int) -> None:
        limits = {**UVICORN, "timeout_graceful_shutdown": STOP_SECONDS}
        super().__init__(
            uvicorn.Config(
                self._answer,
                host=host,
                port=port,
                http=GatewayH11,
                interface="asgi3",
                # A request for another protocol is passed on as what it is: HTTP.
                ws="none",
                date_header=False,
                **limits,
            )
        )
        self._application: GatewayApplication | None = None

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Start the gateway's application, and then listen for calls."""
        self._application = await GatewayApplication.start()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Let the gateway take no more calls; store those not answered in time."""
        application = self._application
        assert application is not None  # noqa: S101 - `startup` was before
        cut = asyncio.get_running_loop().call_later(CUT_SECONDS, application.cut)
        await super().shutdown(sockets)
        cut.cancel()
        application.cut()
        await application.aclose()

    async def _answer(
        self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend
    ) -> None:
        assert self._application is not None  # noqa: S101 - `startup` was before
        await self._application(scope, receive, send)


def session_parameters(options: Mapping[str, Any]) -> dict[str, Any]:
    """Add the time-outs of the gateway's Postgres sessions to their parameters."""
    limits = session_options(
        {
            "statement_timeout": str(STATEMENT_MILLISECONDS),
            "idle_in_transaction_session_timeout": IDLE_TRANSACTION,
        }
    )
    return {
        **options,
        "application_name": "poisonweb gateway",
        "connect_timeout": CONNECT_SECONDS,
        "options": f"{options['options']} {limits}",
        # Milliseconds, after which a network that swallows everything is given up.
        "tcp_user_timeout": STATEMENT_MILLISECONDS,
    }


def serve(*, host: str, port: int) -> None:
    """Run the HTTP server of the gateway until a signal."""
    sys.setswitchinterval(SWITCH_SECONDS)
    database = connections.settings["default"]
    database["OPTIONS"] = session_parameters(database["OPTIONS"])
    with suppress(KeyboardInterrupt):
        GatewayServer(host=host, port=port).run()
