"""Turns: a few requests are worked on at once, and the rest wait for theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from poisonweb.request_limits import (
    Message,
    Receive,
    Scope,
    Send,
    is_of_skips,
    is_other_form,
    is_page,
    is_question_to_broker,
    is_sign_in,
    is_sign_in_elsewhere,
    limit_concurrency,
)

KINDS = (
    is_of_skips,
    is_sign_in,
    is_sign_in_elsewhere,
    is_question_to_broker,
    is_other_form,
)

READ: Message = {"type": "http.request", "body": b"", "more_body": False}
HALF: Message = {"type": "http.request", "body": b"x", "more_body": True}
STARTED: Message = {"type": "http.response.start", "status": 200, "headers": []}


class Work:
    """An application that answers when it is let, and then streams on and on."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.begun: list[str] = []
        self.allowed = asyncio.Event()
        self.breaks = breaks
        self.gate = limit_concurrency(
            self.answer, of=lambda scope: scope["path"].startswith("/skips"), most=2
        )
        self.requests: list[asyncio.Task[None]] = []

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        self.begun.append(scope["name"])
        await self.allowed.wait()
        if self.breaks:
            raise RuntimeError
        await send(STARTED)
        await asyncio.Event().wait()

    async def ask(self, *names: str, path: str = "/skips", of: Message = READ) -> None:
        """Send these requests, and let all come as far as they may."""
        for name in names:
            scope = {"type": "http", "path": path, "name": name}
            request = self.gate(scope, _sending(of), _ignored)
            self.requests.append(asyncio.create_task(request))
        await _settled()


def _sending(message: Message) -> Receive:
    messages = [message]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    return receive


async def _ignored(_: Message) -> None: ...


async def _settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_the_third_waits_until_an_answer_begins() -> None:
    async def story() -> None:
        work = Work()
        await work.ask("a", "b", "c", "d", "e")
        before = list(work.begun)

        work.allowed.set()
        await _settled()

        assert before == ["a", "b"]
        assert work.begun == ["a", "b", "c", "d", "e"]

    run(story())


def test_a_slow_sender_does_not_block_the_others() -> None:
    async def story() -> None:
        work = Work()

        await work.ask("slow 1", "slow 2", "slow 3", of=HALF)
        await work.ask("a", "b")

        assert work.begun == ["a", "b"]

    run(story())


def test_a_turn_that_breaks_or_is_given_up_passes_on() -> None:
    async def story() -> None:
        work = Work(breaks=True)
        await work.ask("a", "b", "c", "d")
        work.requests[0].cancel()
        work.requests[2].cancel()
        await _settled()
        after_leaving = list(work.begun)

        work.allowed.set()
        await asyncio.gather(*work.requests, return_exceptions=True)

        assert after_leaving == ["a", "b", "d"]
        work.breaks = False
        await work.ask("e", "f")
        assert work.begun == ["a", "b", "d", "e", "f"]

    run(story())


def test_other_paths_take_no_turn() -> None:
    async def story() -> None:
        work = Work()

        await work.ask("a", "b", "c", path="/failures")

        assert work.begun == ["a", "b", "c"]

    run(story())


@pytest.mark.parametrize(
    ("method", "path", "kinds"),
    [
        ("GET", "/api/v1/skips", [is_of_skips]),
        ("POST", "/api/v1/skips/applied", [is_of_skips]),
        ("POST", "/api/v1/failures", []),
        ("POST", "/sign-in", [is_sign_in]),
        ("POST", "/sign-in/code", [is_sign_in]),
        ("POST", "/sign-in/provider", [is_sign_in_elsewhere]),
        ("GET", "/sign-in/provider/callback", []),
        ("POST", "/preferences", [is_other_form]),
        ("POST", "/nowhere", [is_other_form]),
        ("POST", "/brokers/7/edit", [is_other_form]),
        ("POST", "/brokers/7/test", [is_question_to_broker]),
        ("POST", "/brokers/7/discover", [is_question_to_broker]),
        ("POST", "/brokers/7/observe", [is_question_to_broker]),
        ("GET", "/brokers/7/discover", []),
        ("GET", "/sign-in", []),
        ("GET", "/problems", []),
    ],
)
def test_a_request_waits_with_its_own_kind_only(
    method: str, path: str, kinds: list[Callable[[Scope], bool]]
) -> None:
    scope = {"type": "http", "method": method, "path": path}

    matches = [kind for kind in KINDS if kind(scope)]

    assert matches == kinds


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", True),
        ("/problems", True),
        ("/sign-in", True),
        ("/brokers/7/test", True),
        ("/api", True),
        ("/api/v1/failures", False),
        ("/static/pages.css", False),
        ("/healthz", False),
        ("/readyz", False),
        ("/metrics", False),
    ],
)
def test_what_is_for_people_is_a_page(path: str, *, expected: bool) -> None:
    assert is_page({"type": "http", "method": "GET", "path": path}) is expected
