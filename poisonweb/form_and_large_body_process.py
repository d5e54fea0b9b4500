"""The second process of the web, which answers forms and large requests.

The code that parses a form or a large body holds the GIL all the time: consumers that
report a failure would have to wait. So the web hands these requests to a process of
their own, which runs at a lower priority.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from socket import socket
from typing import Any

import h11
import uvicorn
from django.conf import settings

from poisonweb import client_handover_to_second_process
from poisonweb.client_handover_to_second_process import PartialRequest
from poisonweb.postgres_pools import SessionPool
from poisonweb.request_limits import (
    API,
    MOST_OF_A_STRANGER,
    Application,
    Message,
    Receive,
    Scope,
    Send,
)
from poisonweb.uvicorn_http_protocol import ContinuedH11

NICENESS = 5
# A request releases the GIL at each query, and waits this long to get it back while
# another thread works.
SWITCH_SECONDS = 0.001
# Forms have as many as before they had a pool; few requests to the API are large.
MOST_SESSIONS = {SessionPool.PAGES: 8, SessionPool.API: 4}
STOP_SECONDS = 2
CHECK_SECONDS = 0.1
RESTART_SECONDS = 1.0
UVICORN: dict[str, Any] = {
    "lifespan": "off",
    # A socket of uvloop cannot be handed over.
    "loop": "asyncio",
    "access_log": False,
    "server_header": False,
    # Django's settings configure logging.
    "log_config": None,
    # Without it an open stream keeps the server from ending.
    "timeout_graceful_shutdown": STOP_SECONDS,
}
_AS_IT_IS = {b"", b"identity"}

log = logging.getLogger(__name__)


def is_costly(request: h11.Request) -> bool:
    """Check if the web's process for costly requests has to answer a request.

    That is a form, or one to the API that is large or may grow.
    """
    if not request.target.startswith(API.encode()):
        return bool(request.method == b"POST")
    headers = dict(request.headers)
    if headers.get(b"content-encoding", b"").strip().lower() not in _AS_IT_IS:
        return True
    size = headers.get(b"content-length", b"0")
    is_large = size.isdigit() and int(size) > MOST_OF_A_STRANGER
    return is_large or b"transfer-encoding" in headers


class CostlyProcess:
    """Start the second process, and a new one when it ends, until `stop`."""

    def __init__(self) -> None:
        ours, theirs = client_handover_to_second_process.socket_pair()
        self._sender = client_handover_to_second_process.ConnectionSender(ours)
        self._process = _start_process(theirs)
        self._watch: asyncio.Task[None] | None = None

    def hand_on(self, request: PartialRequest) -> None:
        """Give a request, with its connection, to the process for costly requests."""
        self._sender.hand_on(request)

    def watch(self) -> None:
        """Restart the process for costly requests when it ends, in this event loop."""
        self._watch = asyncio.create_task(self._restart_forever())

    async def stop(self) -> None:
        """Let the process for costly requests finish those it has, and end.

        Kill it if that takes longer than twice STOP_SECONDS.
        """
        if self._watch is not None:
            self._watch.cancel()
        # The process ends by itself when it can receive no more connections.
        self._sender.close()
        try:
            async with asyncio.timeout(2 * STOP_SECONDS):
                await self._exit_code()
        except TimeoutError:
            self._process.kill()
            await self._exit_code()

    async def _restart_forever(self) -> None:
        """Restart the process for costly requests at each end, after a pause."""
        while True:
            code = await self._exit_code()
            log.error("The process for costly requests ended with code %s.", code)
            await asyncio.sleep(RESTART_SECONDS)
            ours, theirs = client_handover_to_second_process.socket_pair()
            self._process = _start_process(theirs)
            self._sender.replace_socket(ours)

    async def _exit_code(self) -> int:
        """Wait until the process for costly requests ends; return its exit code."""
        while (code := self._process.poll()) is None:
            await asyncio.sleep(CHECK_SECONDS)
        return code


def _start_process(end: socket) -> subprocess.Popen[bytes]:
    """Start the process for costly requests, which receives connections at `end`."""
    command = (sys.executable, "-m", __name__, str(end.fileno()))
    with end:
        return subprocess.Popen(  # noqa: S603 - our own code
            command, pass_fds=[end.fileno()], stdin=subprocess.DEVNULL
        )


class _Server(uvicorn.Server):
    """Answer on the connections that the web hands over; it does not listen."""

    def __init__(self, config: uvicorn.Config, end: socket) -> None:
        super().__init__(config)
        self._end = end
        self._answers: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Start the server; from now on receive costly requests from the web."""
        await super().startup(sockets)
        asyncio.get_running_loop().add_reader(self._end, self._take_requests)

    def _take_requests(self) -> None:
        """Answer costly requests as the web hands them over; stop once it is gone."""
        try:
            for request in client_handover_to_second_process.receive(self._end):
                answer = asyncio.create_task(self._answer(request))
                self._answers.add(answer)
                answer.add_done_callback(self._answers.discard)
        except (EOFError, ConnectionError):
            asyncio.get_running_loop().remove_reader(self._end)
            self.should_exit = True

    async def _answer(self, request: PartialRequest) -> None:
        """Answer a costly request on the client connection that came with it.

        Go on reading where the web stopped.
        """
        protocol = partial(
            ContinuedH11,
            config=self.config,
            server_state=self.server_state,
            app_state={},
            request=request,
        )
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(protocol, request.connection)


def close_after_answer(application: Application) -> Application:
    """Make the process for costly requests close each connection after its answer.

    The next request may belong to the web.
    """

    async def closing(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (b"connection", b"close")]
                message = {**message, "headers": headers}
            await send(message)

        await application(scope, receive, send_last)

    return closing


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the process for costly requests until the web ends."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("socket", type=int, help="the number of an open file")
    end = socket(fileno=parser.parse_args(arguments).socket)
    os.nice(NICENESS)
    sys.setswitchinterval(SWITCH_SECONDS)
    from poisonweb import asgi  # noqa: PLC0415 - it sets up Django

    for name, most in MOST_SESSIONS.items():
        pool = settings.DATABASES["default"]["OPTIONS"]["pool"][name]
        pool["max_size"] = most
    config = uvicorn.Config(close_after_answer(asgi.application), **UVICORN)
    with suppress(KeyboardInterrupt):
        _Server(config, end).run(sockets=[])


if __name__ == "__main__":
    main()
