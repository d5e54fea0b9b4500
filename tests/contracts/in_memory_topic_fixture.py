"""A topic in memory, with a clock that tests advance."""

from __future__ import annotations

from collections.abc import Sequence

from apps.brokers.adapter_contract import (
    BrokerAdmin,
    DeadLetterReader,
    Header,
    Outbound,
    Publisher,
    TopicAdmin,
)
from apps.brokers.adapters.memory import CAPABILITIES, MemoryBroker
from tests.contracts.topic_fixture_interface import (
    MAX_DEQUEUE_COUNT,
    VISIBILITY_TIMEOUT,
    Message,
)


class MemoryStage:
    topic = "orders"
    queue = "orders-poison"
    capabilities = CAPABILITIES

    def __init__(self) -> None:
        self.broker = MemoryBroker()

    def publisher(self) -> Publisher:
        return self.broker.publisher()

    def reader(self) -> DeadLetterReader:
        return self.broker.reader(
            self.topic,
            max_dequeue_count=MAX_DEQUEUE_COUNT,
            visibility_timeout=VISIBILITY_TIMEOUT,
        )

    def admin(self) -> TopicAdmin:
        return self.broker.admin(self.topic)

    def broker_admin(self) -> BrokerAdmin:
        return self.broker

    def put(self, topic: str, body: bytes, headers: Sequence[Header] = ()) -> None:
        message = Outbound(topic=topic, body=body, headers=tuple(headers))
        self.broker.publisher().publish([message])

    def contents(self, topic: str) -> list[Message]:
        return [(m.body, m.headers) for m in self.broker.published(topic)]

    def consume(self, topic: str) -> list[Message]:
        received = self.broker.receive(
            topic, consumer_group="world", client_name="world"
        )
        for bookmark, _ in received:
            self.broker.settle(topic, bookmark, consumer_group="world")
        return [(message.body, message.headers) for _, message in received]

    def receive(self, *, consumer_group: str, client_name: str) -> list[str]:
        received = self.broker.receive(
            self.topic, consumer_group=consumer_group, client_name=client_name
        )
        return [bookmark for bookmark, _ in received]

    def receive_again(
        self, bookmark: str, *, consumer_group: str, client_name: str
    ) -> None:
        self.broker.receive_again(
            self.topic,
            bookmark,
            consumer_group=consumer_group,
            client_name=client_name,
        )

    def settle(self, bookmark: str, *, consumer_group: str) -> None:
        self.broker.settle(self.topic, bookmark, consumer_group=consumer_group)

    def advance(self, seconds: float) -> None:
        self.broker.advance(seconds)

    def go_away(self) -> None:
        self.broker.go_away()

    def come_back(self) -> None:
        self.broker.come_back()

    def remove(self) -> None:
        """Leave the broker in memory to the garbage collector."""
