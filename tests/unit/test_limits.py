"""What a stranger may send: so many bytes, and not one more."""

from __future__ import annotations

import asyncio

import pytest

from poisonweb.limits import Message, Receive, Scope, Send, limited

LIMIT = 10


async def reading(_: Scope, receive: Receive, send: Send) -> None:
    """Read a whole request, as Django does, and say how long it was."""
    total, more = 0, True
    while more:
        message = await receive()
        total += len(message["body"])
        more = message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % total})


def answer(*chunks: bytes, declared: bytes | None = None) -> tuple[int, int]:
    """Send the chunks; give the status, and how many of them were read."""
    sent: list[Message] = []
    left = list(chunks)

    async def receive() -> Message:
        body = left.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(left)}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [] if declared is None else [(b"content-length", declared)]
    scope = {"type": "http", "headers": headers}
    asyncio.run(limited(reading, most=LIMIT)(scope, receive, send))
    return sent[0]["status"], len(chunks) - len(left)


@pytest.mark.parametrize(
    ("chunks", "declared", "expected"),
    [
        ((b"x" * 10,), b"10", (200, 1)),
        ((b"x" * 11,), b"11", (413, 0)),  # refused by its own word, unread
        ((b"x" * 6, b"x" * 5, b"x"), None, (413, 2)),  # and read no further
        ((b"x" * 6, b"x" * 5, b"x"), b"1", (413, 2)),  # whatever it claims
        ((b"x",), b"many", (200, 1)),
    ],
)
def test_a_request_over_the_limit_is_refused(
    chunks: tuple[bytes, ...], declared: bytes | None, expected: tuple[int, int]
) -> None:
    assert answer(*chunks, declared=declared) == expected


def test_what_is_no_request_passes() -> None:
    seen = []

    async def application(scope: Scope, _: Receive, __: Send) -> None:
        seen.append(scope["type"])

    async def nothing() -> Message:
        return {}

    async def send(_: Message) -> None:
        seen.append("sent")

    asyncio.run(limited(application, most=LIMIT)({"type": "lifespan"}, nothing, send))

    assert seen == ["lifespan"]
