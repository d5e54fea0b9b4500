"""What a request may weigh, and when it has its turn.

Django spools a request to disk, whole, before a view can refuse it: a stranger could
fill the disk. So its bytes are counted on the way in, and most of them are taken only
from who is known.
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
# Checks whether the sender of a request is known; raises ConnectionError while the
# database, which knows the senders, is away.
Recognise = Callable[[Scope], Awaitable[bool]]

KIB, MIB = 1024, 1024 * 1024
# A sign-in needs some hundred bytes; a form, with all that a page can select, 20,000.
MOST_OF_A_STRANGER, MOST_OF_A_FORM = 64 * KIB, MIB
API = "/api/v1/"
_ASKS_BROKER = re.compile(r"/brokers/\d+/(?:test|discover|observe)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal(Exception):
    """Why a request is not taken, as its sender is told."""

    status: HTTPStatus
    detail: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


def limited(
    application: Application, *, most_of_api: int, recognise: Recognise
) -> Application:
    """Refuse a request as soon as it has more bytes than it may, and read no more.

    Anybody may send 64 KiB. Beyond, the sender has to be known, and may send a form of
    1 MiB or `most_of_api` bytes to the API.
    """

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        weight = _Weight(scope, most_of_api=most_of_api, recognise=recognise)

        async def weigh() -> Message:
            message = await receive()
            await weight.add(len(message.get("body", b"")))
            return message

        try:
            _check_method(scope)
            _check_length(scope)
            await weight.expect(_declared(scope))
            await application(scope, weigh, send)
        except Refusal as refusal:
            await _refuse(send, refusal)

    return counting


class _Weight:
    """The bytes of one request; asks once who sends it, and only if it must."""

    def __init__(self, scope: Scope, *, most_of_api: int, recognise: Recognise) -> None:
        self._scope = scope
        self._is_of_api = scope["path"].startswith(API)
        self._most = most_of_api if self._is_of_api else MOST_OF_A_FORM
        self._recognise = recognise
        self._is_known = False
        self._bytes = 0

    async def add(self, size: int) -> None:
        self._bytes += size
        await self.expect(self._bytes)

    async def expect(self, size: int) -> None:
        """Raise Refusal for a request of so many bytes."""
        if size > self._most:
            raise self._too_large()
        if size > MOST_OF_A_STRANGER and not self._is_known:
            await self._ask()

    async def _ask(self) -> None:
        try:
            self._is_known = await self._recognise(self._scope)
        except ConnectionError:
            raise Refusal(
                status=HTTPStatus.SERVICE_UNAVAILABLE,
                detail="Nobody can say at the moment who sends this: try again.",
                headers=((b"retry-after", b"5"),),
            ) from None
        if not self._is_known:
            raise Refusal(
                status=HTTPStatus.UNAUTHORIZED,
                detail=f"A request of more than {MOST_OF_A_STRANGER} bytes needs a key"
                " that may be used, or a person who is signed in.",
                headers=((b"www-authenticate", b"Bearer"),),
            )

    def _too_large(self) -> Refusal:
        remedy = (
            "send fewer members at once, or raise POISONWEB_REQUEST_LIMIT"
            if self._is_of_api
            else "use the API for more"
        )
        return Refusal(
            status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            detail=f"A request here has at most {self._most} bytes: {remedy}.",
        )


def is_of_skips(scope: Scope) -> bool:
    """Pick what thousands of consumers ask for when they come back together."""
    path: str = scope["path"]
    return path.startswith(f"{API}skips")


def is_sign_in(scope: Scope) -> bool:
    """Pick guesses of passwords, which wait for each other until they are checked."""
    path: str = scope["path"]
    is_of_sign_in = path.startswith("/sign-in") and not is_sign_in_elsewhere(scope)
    return scope["method"] == "POST" and is_of_sign_in


def is_sign_in_elsewhere(scope: Scope) -> bool:
    """Pick the way to the OpenID provider, which waits for it where it is away.

    Then people sign in by password: these must not wait behind it.
    """
    return bool(scope["method"] == "POST" and scope["path"] == "/sign-in/provider")


def is_question_to_broker(scope: Scope) -> bool:
    """Pick the forms that wait for a broker, half a minute where it is away."""
    path: str = scope["path"]
    return scope["method"] == "POST" and bool(_ASKS_BROKER.fullmatch(path))


def is_form(scope: Scope) -> bool:
    """Pick all other forms: strangers may send them, too, and each has to be read."""
    path: str = scope["path"]
    is_of_page = scope["method"] == "POST" and not path.startswith(API)
    others = (is_sign_in, is_sign_in_elsewhere, is_question_to_broker)
    return is_of_page and not any(is_of_kind(scope) for is_of_kind in others)


def in_turn(
    application: Application, *, of: Callable[[Scope], bool], most: int
) -> Application:
    """Work on no more than `most` requests of a kind at once; the others wait.

    All at once they would wait for a connection to Postgres, in vain, and come again;
    and the more threads have work, the longer each other request waits for its share.
    A request has its turn from when it is read to when its answer begins: neither one
    that is sent slowly nor a stream keeps others from theirs.
    """
    turns = asyncio.Semaphore(most)

    async def taking_turns(scope: Scope, receive: Receive, send: Send) -> None:
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

    return taking_turns


def _check_method(scope: Scope) -> None:
    """Refuse `post`: it is no method (RFC 9110, 9.1), but Django takes it for one.

    Whoever sorts requests by their method goes by how it is written.
    """
    method: str = scope["method"]
    if method != method.upper():
        raise Refusal(
            status=HTTPStatus.NOT_IMPLEMENTED,
            detail="Write the method in capital letters.",
        )


def _check_length(scope: Scope) -> None:
    """Refuse a request whose end is told in two ways (RFC 9112, section 6.1).

    A proxy that goes by the other one would take what follows for another request.
    """
    names = {name for name, _ in scope["headers"]}
    if names >= {b"content-length", b"transfer-encoding"}:
        raise Refusal(
            status=HTTPStatus.BAD_REQUEST,
            detail="Send Content-Length or Transfer-Encoding, not both.",
        )


def _declared(scope: Scope) -> int:
    value = dict(scope["headers"]).get(b"content-length", b"0")
    return int(value) if value.isdigit() else 0


async def _refuse(send: Send, refusal: Refusal) -> None:
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
