"""Size limits of requests, lower for unauthenticated senders."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from poisonweb.request_limits import MOST_OF_A_FORM as FORM
from poisonweb.request_limits import MOST_OF_A_STRANGER as STRANGER
from poisonweb.request_limits import Message, Receive, Scope, Send, limit_size

API = 4 * FORM
PIECE = 16 * 1024


async def reading(_: Scope, receive: Receive, send: Send) -> None:
    """Read a whole request, as Django does, and say how long it was."""
    total, more = 0, True
    while more:
        message = await receive()
        total += len(message["body"])
        more = message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % total})


class PiecewiseSender:
    """Sends a request in pieces; `asked` counts how often it was asked who it is."""

    def __init__(self, size: int, *, is_known: bool | None = True) -> None:
        self.size = size
        self.is_known = is_known
        self.remaining = size
        self.recognise_count = 0
        self.answer: list[Message] = []

    async def receive(self) -> Message:
        size = min(PIECE, self.remaining)
        self.remaining -= size
        return {
            "type": "http.request",
            "body": b"x" * size,
            "more_body": self.remaining > 0,
        }

    async def send(self, message: Message) -> None:
        self.answer.append(message)

    async def recognise(self, _: Scope) -> bool:
        self.recognise_count += 1
        if self.is_known is None:
            raise ConnectionError
        return self.is_known

    def status(
        self,
        path: str,
        *,
        method: str = "POST",
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> int:
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": list(headers),
        }
        application = limit_size(reading, most_of_api=API, recognise=self.recognise)
        asyncio.run(application(scope, self.receive, self.send))
        status: int = self.answer[0]["status"]
        return status

    @property
    def sent_bytes(self) -> int:
        return self.size - self.remaining

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.answer[0]["headers"])


@pytest.mark.parametrize(
    ("path", "size", "is_known", "status"),
    [
        ("/sign-in", STRANGER, False, 200),
        ("/sign-in", STRANGER + 1, False, 401),
        ("/sign-in", STRANGER + 1, True, 200),
        ("/skips/new", FORM, True, 200),
        ("/skips/new", FORM + 1, True, 413),
        ("/api/v1/failures", STRANGER + 1, False, 401),
        ("/api/v1/failures", FORM + 1, True, 200),
        ("/api/v1/failures", API, True, 200),
        ("/api/v1/failures", API + 1, True, 413),
        ("/api/v1/failures", STRANGER + 1, None, 503),
    ],
)
def test_a_request_is_refused_by_its_size_and_its_sender(
    path: str, size: int, is_known: bool | None, status: int
) -> None:
    in_pieces, declared = (
        PiecewiseSender(size, is_known=is_known),
        PiecewiseSender(size, is_known=is_known),
    )
    length = (b"content-length", b"%d" % size)

    assert in_pieces.status(path) == status
    assert declared.status(path, headers=[length]) == status


def test_no_more_is_read_than_shows_that_it_is_too_much() -> None:
    stranger, person = PiecewiseSender(API, is_known=False), PiecewiseSender(API)

    stranger.status("/sign-in")
    person.status("/skips/new")

    assert stranger.sent_bytes <= STRANGER + PIECE
    assert person.sent_bytes <= FORM + PIECE
    assert stranger.headers[b"connection"] == b"close"


def test_a_request_that_says_how_long_it_is_is_refused_unread() -> None:
    sender = PiecewiseSender(API + 1)

    sender.status("/api/v1/failures", headers=[(b"content-length", b"%d" % (API + 1))])

    assert sender.sent_bytes == 0


def test_the_sender_is_identified_once_and_only_for_a_large_request() -> None:
    small, large = PiecewiseSender(STRANGER), PiecewiseSender(API)

    small.status("/api/v1/failures")
    large.status("/api/v1/failures")

    assert (small.recognise_count, large.recognise_count) == (0, 1)


def test_a_claim_of_few_bytes_changes_nothing() -> None:
    sender = PiecewiseSender(STRANGER + 1, is_known=False)

    assert sender.status("/sign-in", headers=[(b"content-length", b"1")]) == 401


@pytest.mark.parametrize(
    ("size", "is_known", "name", "words"),
    [
        (API + 1, True, b"content-type", "raise POISONWEB_REQUEST_LIMIT"),
        (STRANGER + 1, False, b"www-authenticate", "needs a key"),
        (STRANGER + 1, None, b"retry-after", "try again"),
    ],
)
def test_a_refusal_says_what_to_do(
    size: int, is_known: bool | None, name: bytes, words: str
) -> None:
    sender = PiecewiseSender(size, is_known=is_known)

    sender.status("/api/v1/failures")

    problem = json.loads(sender.answer[1]["body"])
    assert name in sender.headers
    assert words in problem["detail"]
    assert problem["status"] == sender.answer[0]["status"]


def test_a_request_with_two_lengths_is_refused() -> None:
    both = [(b"content-length", b"5"), (b"transfer-encoding", b"chunked")]
    sender = PiecewiseSender(5)

    assert sender.status("/api/v1/failures", headers=both) == 400
    assert sender.sent_bytes == 0


@pytest.mark.parametrize("method", ["post", "Post", "geT"])
def test_a_method_in_small_letters_is_refused(method: str) -> None:
    sender = PiecewiseSender(5)

    # Django would take it for the usual one, and those that pick forms would not.
    assert sender.status("/sign-in", method=method) == 501
    assert sender.sent_bytes == 0


def test_other_events_than_requests_are_passed_on() -> None:
    types = []

    async def application(scope: Scope, _: Receive, __: Send) -> None:
        types.append(scope["type"])

    sender = PiecewiseSender(0)
    bounded = limit_size(application, most_of_api=API, recognise=sender.recognise)
    asyncio.run(bounded({"type": "lifespan"}, sender.receive, sender.send))

    assert types == ["lifespan"]
    assert sender.answer == []
