"""Connections go from one process to another, whole and in their order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from poisonweb import client_handover_to_second_process
from poisonweb.client_handover_to_second_process import ConnectionSender, PartialRequest
from tests.waiting import wait_until

MANY = 50
LONG = bytes(range(256)) * 4_096


class SecondProcess:
    """The other process: takes what has come, and reads on where it was left off."""

    def __init__(self) -> None:
        self.requests: list[PartialRequest] = []

    def take(self, end: socket.socket) -> None:
        for each in client_handover_to_second_process.receive(end):
            self.requests.append(each)

    @property
    def received(self) -> list[bytes]:
        return [each.data for each in self.requests]

    def close(self) -> None:
        for each in self.requests:
            each.connection.close()


@pytest.fixture
def receiver() -> Iterator[SecondProcess]:
    receiver = SecondProcess()
    yield receiver
    receiver.close()


def partial_request(received: bytes = b"") -> tuple[socket.socket, PartialRequest]:
    """Give the client's end of a connection, and the other one as it is handed on."""
    client, connection = socket.socketpair()
    return client, PartialRequest(
        connection=connection, data=received, seconds_left=1.5
    )


def test_a_connection_is_handed_over_with_its_data_and_the_remaining_time(
    receiver: SecondProcess,
) -> None:
    ours, theirs = client_handover_to_second_process.socket_pair()
    client, handed = partial_request(LONG)

    with client, theirs:
        asyncio.run(hand_on(ConnectionSender(ours), handed))
        with suppress(EOFError):
            receiver.take(theirs)
        client.sendall(b"more")
        [there] = receiver.requests
        more = there.connection.recv(10)

    assert (there.data, there.seconds_left, more) == (LONG, 1.5, b"more")
    assert handed.connection.fileno() == -1


async def hand_on(sender: ConnectionSender, *connections: PartialRequest) -> None:
    with closing(sender):
        for each in connections:
            sender.hand_on(each)


def test_connections_beyond_the_buffer_wait_and_arrive_in_order(
    receiver: SecondProcess,
) -> None:
    ours, theirs = client_handover_to_second_process.socket_pair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    texts = [b"%d" % number for number in range(MANY)]

    async def scenario() -> int:
        with closing(ConnectionSender(ours)) as sender:
            for text in texts:
                sender.hand_on(without_client(text))
            receiver.take(theirs)
            at_once = len(receiver.requests)
            await until_all_came(receiver, theirs)
        return at_once

    with theirs:
        at_once = asyncio.run(scenario())

    assert at_once < MANY
    assert receiver.received == texts


def test_connections_that_an_ended_process_did_not_receive_go_to_the_next_one(
    receiver: SecondProcess,
) -> None:
    ours, theirs = client_handover_to_second_process.socket_pair()
    next_ours, next_theirs = client_handover_to_second_process.socket_pair()
    texts = [b"%d" % number for number in range(MANY)]
    theirs.close()

    async def scenario() -> None:
        with closing(ConnectionSender(ours)) as sender:
            for text in texts:
                sender.hand_on(without_client(text))
            sender.replace_socket(next_ours)
            await until_all_came(receiver, next_theirs)

    with next_theirs:
        asyncio.run(scenario())

    assert receiver.received == texts


def test_the_end_is_reported_after_the_last_connection(receiver: SecondProcess) -> None:
    ours, theirs = client_handover_to_second_process.socket_pair()

    with theirs:
        asyncio.run(hand_on(ConnectionSender(ours), without_client(b"last")))
        with pytest.raises(EOFError):
            receiver.take(theirs)

    assert receiver.received == [b"last"]


def test_closing_the_sender_closes_waiting_connections() -> None:
    ours, theirs = client_handover_to_second_process.socket_pair()
    theirs.close()
    client, handed = partial_request()

    with client:
        asyncio.run(hand_on(ConnectionSender(ours), handed))

        assert client.recv(1) == b""


def without_client(text: bytes) -> PartialRequest:
    client, handed = partial_request(text)
    client.close()
    return handed


async def until_all_came(receiver: SecondProcess, end: socket.socket) -> None:
    def have_come() -> bool:
        receiver.take(end)
        return len(receiver.requests) >= MANY

    await asyncio.to_thread(wait_until, have_come)
