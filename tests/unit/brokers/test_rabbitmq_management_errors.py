"""Errors of an unreachable management plugin are plain sentences."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from apps.brokers.adapters.adapter import BrokerSettings
from apps.brokers.adapters.rabbitmq import management_api_client
from apps.brokers.adapters.rabbitmq.address_and_queues import RabbitAddress
from apps.brokers.adapters.rabbitmq.management_api_client import RabbitManagement
from apps.core.errors import Unavailable


def words_of(management_url: str) -> str:
    options = {"management_url": management_url}
    broker = BrokerSettings(url="amqp://guest:sesame@localhost", options=options)
    management = RabbitManagement(RabbitAddress.of(broker))
    with closing(management), pytest.raises(Unavailable) as away:
        management.try_out()
    return str(away.value)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """Accept connections, and never answer."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server


def test_a_refused_connection_is_reported_in_the_systems_words() -> None:
    words = words_of("http://127.0.0.1:9")

    assert "does not answer at http://127.0.0.1:9: Connection refused. " in words
    assert "rabbitmq-plugins enable rabbitmq_management" in words
    assert "management_url" in words
    assert not any(raw in words for raw in ("HTTPConnection", "Errno", "`", "sesame"))


def test_a_missing_answer_is_reported_with_the_timeout(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(management_api_client, "REPLY_SECONDS", 0.1)
    port = listening.getsockname()[1]

    assert "no answer in 0.1 seconds" in words_of(f"http://127.0.0.1:{port}")


def test_an_answer_other_than_http_is_a_broken_connection() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        words = _words_while_closing(server, port)

    assert "the connection broke" in words
    assert "RemoteDisconnected" not in words


def _words_while_closing(server: socket.socket, port: int) -> str:
    def hang_up() -> None:
        connection, _ = server.accept()
        connection.recv(65_536)
        connection.close()

    thread = threading.Thread(target=hang_up)
    thread.start()
    try:
        return words_of(f"http://127.0.0.1:{port}")
    finally:
        thread.join()
