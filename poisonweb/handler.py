"""Django's part in a request, in one hop from the event loop to a thread and back.

Django's own handler crosses over anew for each middleware, some twenty times a request,
in a thread that it begins and ends for this request alone. Where thousands of consumers
come back together, that took longer than all else. Here a request is answered as under
WSGI, by a thread that is kept for the next one. What streams is still sent by the loop,
so that an open stream keeps neither a thread nor a connection to Postgres.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import IO, Any

from asgiref.sync import sync_to_async
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.db import close_old_connections
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.urls import set_script_prefix

# More than ever work at once; who comes then waits. Idle ones are used again first.
MOST_THREADS = 1_000

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Response = HttpResponse | StreamingHttpResponse


class OneHop(ASGIHandler):
    """Answer a request in a thread, whole: its middleware, its view and its end."""

    def __init__(self) -> None:
        super().__init__()
        self._threads = ThreadPoolExecutor(MOST_THREADS, "request")

    def load_middleware(
        self,
        is_async: bool = False,  # noqa: ARG002, FBT001, FBT002 - Django's signature
    ) -> None:
        super().load_middleware(is_async=False)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        with body:
            response = await asyncio.get_running_loop().run_in_executor(
                self._threads, copy_context().run, self._respond, scope, body
            )
            if response.streaming:
                await self._stream(response, receive, send)
            else:
                await self.send_response(response, send)

    def _respond(self, scope: Scope, body: IO[bytes]) -> Response:
        """Answer, and give back the connection, also where pieces are still to come."""
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=type(self), scope=scope)
        request, refusal = self.create_request(scope, body)
        given: Any = refusal if request is None else self.get_response(request)
        given._handler_class = type(self)  # noqa: SLF001 - who tells of its end
        response: Response = given
        if isinstance(response, FileResponse):
            response.block_size = self.chunk_size
        if response.streaming:
            close_old_connections()
        else:
            response.close()
        return response

    async def _stream(self, response: Response, receive: Receive, send: Send) -> None:
        """Send it piece by piece, until its end or until nobody listens any more."""
        sending = asyncio.create_task(self.send_response(response, send))
        leaving = asyncio.ensure_future(receive())
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            leaving.cancel()
            await asyncio.wait((sending, leaving))
            # Where the pieces were made, which may have needed a connection.
            await sync_to_async(response.close)()
        if not sending.cancelled():
            sending.result()
