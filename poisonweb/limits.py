"""What a request may weigh before anybody says who sends it, and when it has its turn.

Django spools a request to disk, whole, before a view can refuse it: a stranger could
fill the disk. So its bytes are counted on the way in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]


class TooHeavy(Exception):
    """The request has more bytes than are taken from anybody."""


def limited(application: Application, *, most: int) -> Application:
    """Answer 413 to a request of more than `most` bytes, and read no more of it."""

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        if _declared(scope) > most:
            await _refuse(send, most)
            return
        weighed = 0

        async def weigh() -> Message:
            nonlocal weighed
            message = await receive()
            weighed += len(message.get("body", b""))
            if weighed > most:
                raise TooHeavy
            return message

        try:
            await application(scope, weigh, send)
        except TooHeavy:
            await _refuse(send, most)

    return counting


def in_turn(application: Application, *, below: str, most: int) -> Application:
    """Work on no more than `most` requests below a path at once; the others wait.

    Consumers that all come back together would all wait for a connection, in vain, and
    come again. A request has its turn from when it is read to when its answer begins:
    neither one that is sent slowly nor a stream keeps others from theirs.
    """
    turns = asyncio.Semaphore(most)

    async def taking_turns(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(below):
            await application(scope, receive, send)
            return
        has_turn = False

        async def until_read() -> Message:
            nonlocal has_turn
            message = await receive()
            is_read = message["type"] == "http.request" and not message.get("more_body")
            if is_read and not has_turn:
                await turns.acquire()
                has_turn = True
            return message

        async def until_answered(message: Message) -> None:
            nonlocal has_turn
            if has_turn:
                turns.release()
                has_turn = False
            await send(message)

        try:
            await application(scope, until_read, until_answered)
        finally:
            if has_turn:
                turns.release()

    return taking_turns


def _declared(scope: Scope) -> int:
    value = dict(scope["headers"]).get(b"content-length", b"0")
    return int(value) if value.isdigit() else 0


async def _refuse(send: Send, most: int) -> None:
    body = (
        f'{{"type": "about:blank", "title": "Request Entity Too Large", "status": 413,'
        f' "detail": "A request has at most {most} bytes: send fewer failures at once,'
        f' or raise POISONWEB_REQUEST_LIMIT."}}'
    ).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    start = {"type": "http.response.start", "headers": headers}
    await send({**start, "status": HTTPStatus.REQUEST_ENTITY_TOO_LARGE.value})
    await send({"type": "http.response.body", "body": body})
