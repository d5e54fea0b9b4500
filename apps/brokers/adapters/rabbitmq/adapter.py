"""RabbitMQ, 3.8 or later, classic and quorum queues: a topic is a queue.

The modules beside this one: `amqp_connection` speaks AMQP, `publisher` and `reader`
are the ports for messages, `inspection` those for people, and `amqp_properties`
converts properties and headers. `docs/brokers/rabbitmq.md` is the page for users.
"""

from __future__ import annotations

from apps.brokers.adapter_contract import (
    Capabilities,
    Counting,
    Durability,
    Headers,
    Ordering,
)
from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.adapters.rabbitmq.address_and_queues import (
    RabbitAddress,
    RabbitQueues,
)
from apps.brokers.adapters.rabbitmq.amqp_properties import (
    RESERVED,
    with_message_id,
)
from apps.brokers.adapters.rabbitmq.inspection import (
    RabbitBrokerAdmin,
    RabbitTopicAdmin,
)
from apps.brokers.adapters.rabbitmq.publisher import MOST_BYTES, RabbitPublisher
from apps.brokers.adapters.rabbitmq.reader import RabbitDeadLetterReader

CAPABILITIES = Capabilities(
    # The limit of 3.x; 4.x takes 16 MiB, and refuses larger messages itself.
    max_message=MOST_BYTES,
    counts_headers=False,
    headers=Headers.BYTES,
    most_headers=None,
    # A queue hands out in the order of arrival; one consumer keeps that order.
    ordering=Ordering.TOPIC,
    dedupe_window=0,
    # A quorum queue confirms what most of its nodes have on disk, a classic one what
    # its only node has handed to the operating system: this is the weaker one.
    durability=Durability.PAGE_CACHE,
    delay=0,
    peeks=False,
    extends=False,
    counting=Counting.BROKER,
    dead_letters_itself=True,
    delivered=True,
    reserved=RESERVED,
    with_message_id=with_message_id,
    # A queue has its own delivery limit, and hides a message while the connection
    # lasts.
    limits=frozenset(),
)


class RabbitAdapter:
    """Adapter of RabbitMQ, by AMQP 0-9-1 and by HTTP with the management plugin."""

    capabilities = CAPABILITIES

    def publisher(self, broker: BrokerSettings) -> RabbitPublisher:
        """Return a publisher to a RabbitMQ broker; its first message connects it."""
        return RabbitPublisher(RabbitAddress.of(broker))

    def dead_letter_reader(
        self, broker: BrokerSettings, topic: TopicSettings
    ) -> RabbitDeadLetterReader:
        """Return a reader of a topic's RabbitMQ dead letters; reading connects it."""
        return RabbitDeadLetterReader(RabbitAddress.of(broker), RabbitQueues.of(topic))

    def topic_admin(
        self, broker: BrokerSettings, topic: TopicSettings
    ) -> RabbitTopicAdmin:
        """Return the admin that counts a topic's RabbitMQ queues.

        It connects when asked.
        """
        return RabbitTopicAdmin(RabbitAddress.of(broker), RabbitQueues.of(topic))

    def broker_admin(self, broker: BrokerSettings) -> RabbitBrokerAdmin:
        """Return the admin that tests a RabbitMQ broker and lists its queues."""
        return RabbitBrokerAdmin(RabbitAddress.of(broker))

    def queue_by_convention(self, topic: str) -> str:
        """Return "", no conventional dead-letter queue: RabbitMQ's policies name it."""
        return ""

    def ordering(self, topic: str) -> Ordering:
        """Return the ordering of RabbitMQ's queues: all have the same."""
        return CAPABILITIES.ordering


ADAPTER = RabbitAdapter()
