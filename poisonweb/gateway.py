"""Run the gateway: Uvicorn, with limits that its command line lacks.

It is a process of its own: no back end, however slow, keeps a page or a consumer
waiting.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from socket import socket
from typing import Any

import uvicorn
from django.db import connections

from apps.core.postgres_connections import IDLE_TRANSACTION, session_options
from apps.redelivery.gateway.application import GatewayApplication
from apps.redelivery.gateway.caller_connections import (
    AsgiReceive,
    AsgiScope,
    AsgiSend,
)
from poisonweb.form_and_large_body_process import SWITCH_SECONDS, UVICORN
from poisonweb.gateway_http_protocol import GatewayProtocol

# After this long a stop waits no more for back ends; soon after, not for callers.
CUT_SECONDS, STOP_SECONDS = 5.0, 10
CONNECT_SECONDS = 2
STATEMENT_MILLISECONDS = 10_000


class GatewayServer(uvicorn.Server):
    """Run the application in its event loop, and end it after the last answer."""

    def __init__(self, *, host: str, port: int) -> None:
        limits = {
            **UVICORN,
            "loop": "uvloop",
            "timeout_graceful_shutdown": STOP_SECONDS,
        }
        super().__init__(
            uvicorn.Config(
                self._answer,
                host=host,
                port=port,
                http=GatewayProtocol,
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
        loop = asyncio.get_running_loop()
        timer = loop.call_later(CUT_SECONDS, application.stop_first_tries)
        await super().shutdown(sockets)
        timer.cancel()
        application.stop_first_tries()
        await application.aclose()

    def _answer(
        self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend
    ) -> Awaitable[None]:
        assert self._application is not None  # noqa: S101 - `startup` was before
        return self._application(scope, receive, send)


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
