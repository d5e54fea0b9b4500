"""Answer a request in one thread, with one hop from the event loop and back.

Django's own handler changes threads for every middleware, some twenty times a request,
and starts a thread for each request. With thousands of consumers that reconnect at once
this took longer than everything else. Here a thread of a pool answers the whole
request, as under WSGI. The event loop still sends streams, so that an open stream keeps
neither a thread nor a session of Postgres.
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

# More than ever work at once; further requests wait. Idle threads are reused first.
MOST_THREADS = 1_000

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Response = HttpResponse | StreamingHttpResponse


class ThreadedHandler(ASGIHandler):
    """Run middleware, view and the end of a request in one thread."""

    def __init__(self) -> None:
        super().__init__()
        self._threads = ThreadPoolExecutor(MOST_THREADS, "request")

    def load_middleware(
        self,
        is_async: bool = False,  # noqa: ARG002, FBT001, FBT002 - Django's signature
    ) -> None:
        super().load_middleware(is_async=False)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to the web: read its body, respond in a thread, send."""
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
        """Return the response to a request, and give its Postgres session back.

        That is done even before a streamed response is sent.
        """
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=type(self), scope=scope)
        request, refusal = self.create_request(scope, body)
        answer: Any = refusal if request is None else self.get_response(request)
        answer._handler_class = type(self)  # noqa: SLF001 - the sender of request_finished
        response: Response = answer
        if isinstance(response, FileResponse):
            response.block_size = self.chunk_size
        if response.streaming:
            close_old_connections()
        else:
            response.close()
        return response

    async def _stream(self, response: Response, receive: Receive, send: Send) -> None:
        """Send a streamed answer until its end, or until the client disconnects."""
        sending = asyncio.create_task(self.send_response(response, send))
        disconnect = asyncio.ensure_future(receive())
        try:
            await asyncio.wait(
                (sending, disconnect), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            sending.cancel()
            disconnect.cancel()
            await asyncio.wait((sending, disconnect))
            # In a thread, as the stream was: it may have used a session.
            await sync_to_async(response.close)()
        if not sending.cancelled():
            sending.result()
