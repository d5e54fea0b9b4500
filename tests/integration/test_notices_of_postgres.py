"""A session that listens yields notices at once, and ends with its session."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import psycopg
import pytest
from psycopg import Notify

from apps.core import postgres_connections
from apps.core.postgres_connections import notices, open_async_session

pytestmark = pytest.mark.django_db(transaction=True)

NO_LOOK = 3_600.0


@pytest.fixture(autouse=True)
def no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a notice to be seen by nothing but the session's socket."""
    monkeypatch.setattr(postgres_connections, "LOOK_SECONDS", NO_LOOK)


async def notify(*payloads: str) -> None:
    async with await open_async_session("test") as session:
        for payload in payloads:
            await session.execute("SELECT pg_notify('tests', %s)", [payload])


async def following(heard: AsyncIterator[Notify], number: int) -> list[str]:
    async with asyncio.timeout(30):
        return [(await anext(heard)).payload for _ in range(number)]


async def hear_before_and_while_it_waits() -> tuple[list[str], list[str]]:
    async with await open_async_session("test") as session:
        await session.execute("LISTEN tests")
        await notify("1", "2")
        heard = notices(session)
        first = await following(heard, 2)
        waiting = asyncio.create_task(following(heard, 501))
        await asyncio.sleep(0.2)
        await notify(*map(str, range(3, 504)))
        return first, await waiting


def test_notices_before_and_while_it_waits_are_yielded_in_order() -> None:
    first, others = asyncio.run(hear_before_and_while_it_waits())

    assert first == ["1", "2"]
    assert others == [*map(str, range(3, 504))]


class SocketSession:
    """A session that is notified by bytes on a socket, without a server's timing."""

    def __init__(self, socket: socket.socket) -> None:
        self.socket = socket

    def fileno(self) -> int:
        return self.socket.fileno()

    async def notifies(self, *, timeout: float) -> AsyncIterator[Notify]:
        with suppress(BlockingIOError):
            while self.socket.recv(1):
                yield Notify("tests", "", 1)


async def is_ended_by_cancel(turns: int) -> bool:
    """Cancel who listens, so many turns of the loop after a notice has come."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)

        async def listen() -> None:
            async for _ in notices(SocketSession(ours)):  # type: ignore[arg-type]
                pass

        task = asyncio.create_task(listen())
        await asyncio.sleep(0.01)
        theirs.send(b"!")
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        ended, _ = await asyncio.wait([task], timeout=10)
        return task in ended


@pytest.mark.parametrize("turns", range(8))
def test_a_cancel_together_with_a_notice_is_not_lost(turns: int) -> None:
    assert asyncio.run(is_ended_by_cancel(turns))


async def hear_while_its_session_is_ended() -> None:
    async with await open_async_session("test") as session:
        await session.execute("LISTEN tests")
        waiting = asyncio.create_task(following(notices(session), 1))
        await asyncio.sleep(0.2)
        async with await open_async_session("test") as other:
            await other.execute(
                "SELECT pg_terminate_backend(%s)", [session.info.backend_pid]
            )
        await waiting


def test_it_ends_when_postgres_ends_its_session() -> None:
    with pytest.raises(psycopg.OperationalError):
        asyncio.run(hear_while_its_session_is_ended())


async def hear_by_a_look(patch: pytest.MonkeyPatch, silent: int) -> list[str]:
    """Hear a notice that the socket does not show, as where TLS has read it already."""
    async with await open_async_session("test") as session:
        await session.execute("LISTEN tests")
        patch.setattr(session, "fileno", lambda: silent)
        waiting = asyncio.create_task(following(notices(session), 1))
        await asyncio.sleep(0.2)
        await notify("1")
        return await waiting


def test_without_a_sign_of_its_socket_it_looks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres_connections, "LOOK_SECONDS", 0.05)
    here, there = socket.socketpair()

    with here, there:
        heard = asyncio.run(hear_by_a_look(monkeypatch, here.fileno()))

    assert heard == ["1"]
