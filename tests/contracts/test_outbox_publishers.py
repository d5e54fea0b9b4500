"""The outbox's publisher for RabbitMQ, against a real one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from poisonguard.errors import Away
from poisonguard.outbox.message import OutboxMessage
from poisonguard.outbox.outcome import SendKind
from poisonguard.outbox.publishers.pika import PikaPublisher, unfit
from poisonweb.embedded.free_ports import free_port

pytestmark = pytest.mark.needs("rabbitmq")


@pytest.fixture
def rabbit(servers: Callable[[str], Any]) -> Any:
    return servers("rabbitmq")


@pytest.fixture
def publisher(rabbit: Any) -> Iterator[PikaPublisher]:
    publisher = PikaPublisher(f"{rabbit.url}%2F")
    yield publisher
    publisher.close()


@pytest.fixture
def queue(rabbit: Any) -> Iterator[str]:
    name = f"outbox-{uuid4().hex}"
    with rabbit.connection() as connection:
        connection.channel().queue_declare(name, durable=True)
    yield name
    # The test may have closed all connections.
    with rabbit.connection() as connection:
        connection.channel().queue_delete(name)


def message(message_id: str, topic: str, **more: Any) -> OutboxMessage:
    names: dict[str, Any] = {"producer": "shop", "body": b"\x00\xff"}
    return OutboxMessage(message_id=message_id, topic=topic, **names | more)


def messages(rabbit: Any, queue: str) -> list[Any]:
    with rabbit.connection() as connection:
        channel, arrivals = connection.channel(), list[Any]()
        while (arrival := channel.basic_get(queue, auto_ack=True))[0] is not None:
            arrivals.append(arrival)
        return arrivals


def test_a_window_is_confirmed_and_each_message_has_its_outcome(
    rabbit: Any, publisher: PikaPublisher, queue: str
) -> None:
    headers = ((b"amqp.content_type", b"text/x"), (b"name", b"v"), (b"raw", b"\xfe"))
    window = [message(f"m-{number}", queue) for number in range(300)]
    window[100] = message("nowhere", f"{queue}-missing")
    window[200] = message("twice", queue, headers=((b"a", b"1"), (b"a", b"2")))
    window[299] = message("last", queue, headers=headers)

    for _ in "ab":  # the connection is used again
        outcomes = publisher(window)
        refused = [n for n, o in enumerate(outcomes) if o.kind is SendKind.REFUSED]
        assert refused == [100, 200]
        assert {o.kind for o in outcomes} == {SendKind.SENT, SendKind.REFUSED}
        assert "no queue" in outcomes[100].detail

    arrivals = messages(rabbit, queue)
    assert len(arrivals) == 2 * 298
    _, properties, body = arrivals[-1]
    assert (properties.message_id, body) == ("last", b"\x00\xff")
    assert (properties.content_type, properties.delivery_mode) == ("text/x", 2)
    assert properties.headers == {"name": "v", "raw": b"\xfe"}


def test_equal_messages_without_a_queue_are_refused_each(
    publisher: PikaPublisher, queue: str
) -> None:
    window = [message(f"m-{n % 7}", f"{queue}-missing") for n in range(100)]

    outcomes = publisher(window)

    assert {o.kind for o in outcomes} == {SendKind.REFUSED}


def test_a_large_window_without_a_queue_costs_as_much_for_each_message(
    publisher: PikaPublisher, queue: str
) -> None:
    def cost(count: int) -> float:
        window = [message(f"m-{n}", f"{queue}-missing") for n in range(count)]
        began = time.process_time()
        outcomes = publisher(window)
        assert {o.kind for o in outcomes} == {SendKind.REFUSED}
        return (time.process_time() - began) / count

    cost(500)
    small = min(cost(500) for _ in range(3))
    assert cost(10_000) < 3 * small


def test_headers_whose_names_become_one_are_refused() -> None:
    names_that_are_no_text = ((b"\xfe", b"1"), (b"\xff", b"2"))
    assert "a name comes twice" in unfit(
        message("m", "orders", headers=names_that_are_no_text)
    )


def test_a_connection_that_was_closed_meanwhile_is_opened_again(
    rabbit: Any, publisher: PikaPublisher, queue: str
) -> None:
    publisher([message("m-1", queue)])
    # A list of them would lack what was opened in the last 5 seconds.
    rabbit.manage("DELETE", "connections", "username", "guest")

    outcomes = publisher([message("m-2", queue)])

    assert outcomes[0].kind in {SendKind.SENT, SendKind.UNKNOWN}
    (outcome,) = publisher([message("m-3", queue)])
    assert outcome.kind is SendKind.SENT


def test_a_broker_that_is_away_is_away() -> None:
    publisher = PikaPublisher(f"amqp://guest:guest@127.0.0.1:{free_port()}/%2F")
    with pytest.raises(Away, match="RabbitMQ is away"):
        publisher([message("m", "orders")])
    publisher.close()
