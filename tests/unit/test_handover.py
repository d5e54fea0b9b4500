"""Connections go from one process to another, whole and in their order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from poisonweb import handover
from poisonweb.handover import Begun, Sender

MANY = 50
LONG = bytes(range(256)) * 4_096


class Receiver:
    """The other process: takes what has come, and reads on where it was left off."""

    def __init__(self) -> None:
        self.begun: list[Begun] = []

    def take(self, end: socket.socket) -> None:
        for each in handover.received(end):
            self.begun.append(each)

    @property
    def received(self) -> list[bytes]:
        return [each.received for each in self.begun]

    def close(self) -> None:
        for each in self.begun:
            each.connection.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def begun(received: bytes = b"") -> tuple[socket.socket, Begun]:
    """Give the client's end of a connection, and the other one as it is handed on."""
    client, connection = socket.socketpair()
    return client, Begun(connection=connection, received=received, seconds_left=1.5)


def test_a_connection_goes_with_what_was_read_and_the_time_that_is_left(
    receiver: Receiver,
) -> None:
    ours, theirs = handover.line()
    client, handed = begun(LONG)

    with client, theirs:
        asyncio.run(hand_on(Sender(ours), handed))
        with suppress(EOFError):
            receiver.take(theirs)
        client.sendall(b"more")
        [there] = receiver.begun
        more = there.connection.recv(10)

    assert (there.received, there.seconds_left, more) == (LONG, 1.5, b"more")
    assert handed.connection.fileno() == -1


async def hand_on(sender: Sender, *connections: Begun) -> None:
    with closing(sender):
        for each in connections:
            sender.hand_on(each)


def test_more_than_the_line_takes_waits_and_comes_in_order(receiver: Receiver) -> None:
    ours, theirs = handover.line()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    texts = [b"%d" % number for number in range(MANY)]

    async def scenario() -> int:
        with closing(Sender(ours)) as sender:
            for text in texts:
                sender.hand_on(without_client(text))
            receiver.take(theirs)
            at_once = len(receiver.begun)
            await until_all_came(receiver, theirs)
        return at_once

    with theirs:
        at_once = asyncio.run(scenario())

    assert at_once < MANY
    assert receiver.received == texts


def test_what_a_process_that_ended_did_not_take_goes_to_the_next_one(
    receiver: Receiver,
) -> None:
    ours, theirs = handover.line()
    next_ours, next_theirs = handover.line()
    texts = [b"%d" % number for number in range(MANY)]
    theirs.close()

    async def scenario() -> None:
        with closing(Sender(ours)) as sender:
            for text in texts:
                sender.hand_on(without_client(text))
            sender.go_on_by(next_ours)
            await until_all_came(receiver, next_theirs)

    with next_theirs:
        asyncio.run(scenario())

    assert receiver.received == texts


def test_the_end_of_the_line_is_told_after_all_that_came(receiver: Receiver) -> None:
    ours, theirs = handover.line()

    with theirs:
        asyncio.run(hand_on(Sender(ours), without_client(b"last")))
        with pytest.raises(EOFError):
            receiver.take(theirs)

    assert receiver.received == [b"last"]


def test_a_sender_that_is_closed_closes_what_waits() -> None:
    ours, theirs = handover.line()
    theirs.close()
    client, handed = begun()

    with client:
        asyncio.run(hand_on(Sender(ours), handed))

        assert client.recv(1) == b""


def without_client(text: bytes) -> Begun:
    client, handed = begun(text)
    client.close()
    return handed


async def until_all_came(receiver: Receiver, end: socket.socket) -> None:
    async with asyncio.timeout(30):
        while len(receiver.begun) < MANY:
            receiver.take(end)
            await asyncio.sleep(0.001)
