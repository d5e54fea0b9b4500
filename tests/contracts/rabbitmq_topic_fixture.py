"""A topic and its dead-letter queue on a RabbitMQ, each for one test.

Both are classic queues: a quorum queue sorts the headers of its messages, and is lost
when its broker is killed within its first second. `test_rabbitmq_specifics` tests the
differences of quorum queues.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import uuid4

from pika import spec
from pika.adapters.blocking_connection import BlockingChannel

from apps.brokers.adapter_contract import (
    Header,
    Outbound,
    OutcomeKind,
    Publisher,
)
from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.adapters.rabbitmq import amqp_properties as properties
from apps.brokers.adapters.rabbitmq.adapter import ADAPTER
from apps.brokers.adapters.rabbitmq.address_and_queues import RabbitAddress
from apps.brokers.adapters.rabbitmq.amqp_connection import (
    RabbitArrival,
    RabbitRejected,
    RabbitWire,
)
from tests.brokers.rabbitmq import RabbitMqServer
from tests.contracts.topic_fixture_interface import (
    MAX_DEQUEUE_COUNT,
    VISIBILITY_TIMEOUT,
    Message,
    StagePorts,
)


class RabbitStage(StagePorts):
    adapter = ADAPTER

    def __init__(self, server: RabbitMqServer) -> None:
        if server.process.poll() is not None:
            server.start()
        self.server = server
        self.url = server.url
        self.topic = f"/orders/ü %2F {uuid4()}"
        self.queue = f"{self.topic} dead"
        self.options: dict[str, object] = {"management_url": server.management_url}
        self._producer: Publisher | None = None
        self.declare(self.queue, "classic")
        self.declare(
            self.topic,
            "classic",
            {
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": self.queue,
            },
        )

    @property
    def broker(self) -> BrokerSettings:
        return BrokerSettings(url=self.url, options=self.options)

    @property
    def settings(self) -> TopicSettings:
        return TopicSettings(
            topic=self.topic,
            dead_letter_queue=self.queue,
            max_dequeue_count=MAX_DEQUEUE_COUNT,
            visibility_timeout=VISIBILITY_TIMEOUT,
        )

    def put(self, topic: str, body: bytes, headers: Sequence[Header] = ()) -> None:
        """Add a message to RabbitMQ; pika could not send any bytes as headers."""
        self._producer = self._producer or self.publisher()
        message = Outbound(topic=topic, body=body, headers=tuple(headers))
        (outcome,) = self._producer.publish([message])
        assert outcome.kind is OutcomeKind.SENT, outcome.detail

    def put_later(self, topic: str, body: bytes, *, seconds: int) -> None:
        """Ask for a delay as producers do: only a plugin's exchange obeys it."""
        self.put(topic, body, ((b"x-delay", b'{"$I": %d}' % (seconds * 1_000)),))

    def contents(self, topic: str) -> list[Message]:
        """Return a queue's messages; they return to it when the connection ends."""
        with self.wire() as wire:
            return [message_of(arrival) for arrival in receive_all(wire, topic)]

    def consume(self, topic: str) -> list[Message]:
        with self.wire() as wire:
            arrivals = list(receive_all(wire, topic))
            wire.send(spec.Basic.Ack(0, multiple=True))
            return [message_of(arrival) for arrival in arrivals]

    @contextmanager
    def wire(self) -> Iterator[RabbitWire]:
        wire = RabbitWire(RabbitAddress.of(self.broker))
        wire.open_channel()
        try:
            yield wire
        finally:
            wire.close()

    def declare(
        self, name: str, kind: str, arguments: dict[str, object] | None = None
    ) -> None:
        with self.channel() as channel:
            all_arguments = {"x-queue-type": kind, **(arguments or {})}
            channel.queue_declare(name, durable=True, arguments=all_arguments)

    @contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        connection = self.server.connection()
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()

    def go_away(self) -> None:
        self.server.kill()

    def come_back(self) -> None:
        self.server.start()


def receive_all(wire: RabbitWire, queue: str) -> Iterator[RabbitArrival]:
    """Receive all messages of a queue without settling; [] if it is missing."""
    try:
        while True:
            wire.send(spec.Basic.Get(queue=queue))
            arrival = wire.receive(wait=20)
            if arrival is None or not isinstance(arrival.method, spec.Basic.GetOk):
                return
            yield arrival
    except RabbitRejected as rejection:
        if rejection.code != 404:
            raise


def message_of(arrival: RabbitArrival) -> Message:
    return arrival.body, properties.decode(arrival.properties)
