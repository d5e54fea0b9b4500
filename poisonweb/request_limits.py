"""Limits of the size of a request, and of the number of requests at work.

Django writes a whole request to disk before a view can refuse it: a stranger could fill
the disk. So these wrappers count its bytes on arrival, and accept large requests from
known senders only.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]
# Checks whether the sender of a request is known; raises ConnectionError while Postgres
# is away.
Recognise = Callable[[Scope], Awaitable[bool]]

KIB, MIB = 1024, 1024 * 1024
# A sign-in needs some hundred bytes; a form, with all that a page can select, 20,000.
MOST_OF_A_STRANGER, MOST_OF_A_FORM = 64 * KIB, MIB
API = "/api/v1/"
_NO_PAGES = ("/static/", "/healthz", "/readyz", "/metrics", API)
_ASKS_BROKER = re.compile(r"/brokers/\d+/(?:test|discover|observe)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal(Exception):
    """A refused request: the answer to its sender."""

    status: HTTPStatus
    detail: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


def limit_size(
    application: Application, *, most_of_api: int, recognise: Recognise
) -> Application:
    """Refuse a request as soon as it exceeds its size limit, and read no more of it.

    Any sender may send 64 KiB. A known sender may send a form of 1 MiB, or
    `most_of_api` bytes to the API.
    """

    async def limited(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        size_so_far = _RequestSize(scope, most_of_api=most_of_api, recognise=recognise)

        async def receive_counted() -> Message:
            message = await receive()
            await size_so_far.add(len(message.get("body", b"")))
            return message

        try:
            _check_method(scope)
            _check_length(scope)
            await size_so_far.expect(_declared_length(scope))
            await application(scope, receive_counted, send)
        except Refusal as refusal:
            await _refuse(send, refusal)

    return limited


class _RequestSize:
    """The size of one request; identifies its sender once, and only if necessary."""

    def __init__(self, scope: Scope, *, most_of_api: int, recognise: Recognise) -> None:
        self._scope = scope
        self._is_of_api = scope["path"].startswith(API)
        self._most = most_of_api if self._is_of_api else MOST_OF_A_FORM
        self._recognise = recognise
        self._is_known = False
        self._bytes = 0

    async def add(self, size: int) -> None:
        """Count a request body's bytes for the web; raise Refusal above the limit."""
        self._bytes += size
        await self.expect(self._bytes)

    async def expect(self, size: int) -> None:
        """Raise Refusal if a request's sender may not send the web `size` bytes."""
        if size > self._most:
            raise self._too_large()
        if size > MOST_OF_A_STRANGER and not self._is_known:
            await self._require_known_sender()

    async def _require_known_sender(self) -> None:
        """Raise Refusal unless a valid key or session sent this request to the web."""
        try:
            self._is_known = await self._recognise(self._scope)
        except ConnectionError:
            raise Refusal(
                status=HTTPStatus.SERVICE_UNAVAILABLE,
                detail="The sender cannot be identified at the moment: try again.",
                headers=((b"retry-after", b"5"),),
            ) from None
        if not self._is_known:
            raise Refusal(
                status=HTTPStatus.UNAUTHORIZED,
                detail=f"A request of more than {MOST_OF_A_STRANGER} bytes needs a key"
                " that is valid, or a person who is signed in.",
                headers=((b"www-authenticate", b"Bearer"),),
            )

    def _too_large(self) -> Refusal:
        """Return the web's refusal of a request that is too large."""
        remedy = (
            "send fewer members at once, or raise POISONWEB_REQUEST_LIMIT"
            if self._is_of_api
            else "use the API for more"
        )
        return Refusal(
            status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            detail=f"A request here has at most {self._most} bytes: {remedy}.",
        )


def is_page(scope: Scope) -> bool:
    """Check if a request is for a page or one of its forms, as people send it."""
    path: str = scope["path"]
    return not path.startswith(_NO_PAGES)


def is_of_skips(scope: Scope) -> bool:
    """Check if a request is for the skip list, which thousands of consumers request."""
    path: str = scope["path"]
    return path.startswith(f"{API}skips")


def is_sign_in(scope: Scope) -> bool:
    """Check if a request is a sign-in with a password, which takes processor time."""
    path: str = scope["path"]
    is_of_sign_in = path.startswith("/sign-in") and not is_sign_in_elsewhere(scope)
    return scope["method"] == "POST" and is_of_sign_in


def is_sign_in_elsewhere(scope: Scope) -> bool:
    """Check if a request is a sign-in through the OpenID provider, which may wait.

    People then sign in with a password: those requests must not wait behind this one.
    """
    return bool(scope["method"] == "POST" and scope["path"] == "/sign-in/provider")


def is_question_to_broker(scope: Scope) -> bool:
    """Check if a request is a form that waits for a broker, perhaps half a minute."""
    path: str = scope["path"]
    return scope["method"] == "POST" and bool(_ASKS_BROKER.fullmatch(path))


def is_other_form(scope: Scope) -> bool:
    """Check if a request is a page's form, but no sign-in and no question to a broker.

    Strangers may send it, too.
    """
    path: str = scope["path"]
    is_of_page = scope["method"] == "POST" and not path.startswith(API)
    others = (is_sign_in, is_sign_in_elsewhere, is_question_to_broker)
    return is_of_page and not any(is_of_kind(scope) for is_of_kind in others)


def limit_concurrency(
    application: Application, *, of: Callable[[Scope], bool], most: int
) -> Application:
    """Let at most `most` requests of a kind work at once; the others wait.

    Without a limit they would wait in vain for a session of Postgres, and be repeated;
    and the more threads work, the longer all other requests take. A request counts from
    the time when it was read to the beginning of its answer: neither a slow sender nor
    a stream blocks the others.
    """
    turns = asyncio.Semaphore(most)

    async def limited(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not of(scope):
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

    return limited


def _check_method(scope: Scope) -> None:
    """Refuse a request to the web with a method such as `post`.

    Django would take it for POST. The functions above compare the method as it is
    written.
    """
    method: str = scope["method"]
    if method != method.upper():
        raise Refusal(
            status=HTTPStatus.NOT_IMPLEMENTED,
            detail="Write the method in capital letters.",
        )


def _check_length(scope: Scope) -> None:
    """Refuse a request that gives its length in two ways (RFC 9112, section 6.1).

    A proxy that uses the other one would take the rest for a second request.
    """
    names = {name for name, _ in scope["headers"]}
    if names >= {b"content-length", b"transfer-encoding"}:
        raise Refusal(
            status=HTTPStatus.BAD_REQUEST,
            detail="Send Content-Length or Transfer-Encoding, not both.",
        )


def _declared_length(scope: Scope) -> int:
    """Return the body length that a request's head declares; 0 without one."""
    value = dict(scope["headers"]).get(b"content-length", b"0")
    return int(value) if value.isdigit() else 0


async def _refuse(send: Send, refusal: Refusal) -> None:
    """Answer a request that the web refuses with a problem; close its connection."""
    problem = {
        "type": "about:blank",
        "title": refusal.status.phrase,
        "status": refusal.status,
        "detail": refusal.detail,
    }
    body = json.dumps(problem).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"%d" % len(body)),
        # The rest of the request is not read.
        (b"connection", b"close"),
        *refusal.headers,
    ]
    start = {"type": "http.response.start", "headers": headers}
    await send({**start, "status": refusal.status.value})
    await send({"type": "http.response.body", "body": body})
