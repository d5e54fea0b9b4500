from __future__ import annotations

import socket

import pytest

from poisonweb.embedded.free_ports import CANDIDATES, LOOPBACK, free_port, is_free


def test_finds_a_port_below_those_of_outgoing_connections() -> None:
    port = free_port()

    assert is_free(port)
    assert port in CANDIDATES


def test_a_port_with_a_listener_is_not_free() -> None:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen()

        assert not is_free(listener.getsockname()[1])


def test_a_port_is_free_again_when_only_an_old_connection_lingers() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection((LOOPBACK, port)):
            # The side that closes first keeps the port in TIME_WAIT.
            listener.accept()[0].close()

    assert is_free(port)


def test_a_port_is_kept_from_others_until_a_server_listens_on_it() -> None:
    port = free_port()

    # As another caller here or in another process asks for it.
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((LOOPBACK, port))


def test_a_server_can_listen_on_the_port_that_it_was_given() -> None:
    port = free_port()

    with (
        socket.create_server((LOOPBACK, port)),
        socket.create_connection((LOOPBACK, port)),
    ):
        assert not is_free(port)
