"""What a request may weigh, before anybody has said who sends it.

Django spools a request to disk, whole, before a view can refuse it: a stranger could
fill the disk. So its bytes are counted on the way in.
"""

from __future__ import annotations

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
