"""Redis Streams, from 7.0 on: a topic is a stream and a message is its fields.

One field is the body (`body_field`) and the others are headers in their order; there is
no envelope (`entries` keeps every entry byte for byte).

A topic and its dead-letter queue are on one server, in a cluster in one hash slot: one
MULTI moves a message from the one to the other. `publisher` and `reader` are the ports
for messages, `inspection` those for people, and `dead_letter_mover` moves what is
exhausted.
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
from apps.brokers.adapters.redis_streams.inspection import (
    RedisBrokerAdmin,
    RedisTopicAdmin,
)
from apps.brokers.adapters.redis_streams.publisher import (
    LARGEST_STRING,
    MOST_FIELDS,
    RedisPublisher,
)
from apps.brokers.adapters.redis_streams.reader import RedisDeadLetterReader
from apps.brokers.adapters.redis_streams.settings import settings_of
from apps.brokers.redis_stream_ids import SEQ_BITS

CAPABILITIES = Capabilities(
    max_message=LARGEST_STRING,
    counts_headers=True,
    headers=Headers.BYTES,
    most_headers=MOST_FIELDS - 1,
    ordering=Ordering.TOPIC,
    dedupe_window=0,
    # Redis answers before it writes, and usually writes to disk once a second.
    durability=Durability.PAGE_CACHE,
    delay=0,
    peeks=True,
    extends=False,
    counting=Counting.BROKER,
    dead_letters_itself=False,
    delivered=True,
    seq_bits=SEQ_BITS,
)


class RedisAdapter:
    """Adapter of Redis Streams; `redis_connection` calls Redis, not redis-py."""

    capabilities = CAPABILITIES

    def publisher(self, broker: BrokerSettings) -> RedisPublisher:
        """Return a publisher for a broker; it connects with its first message."""
        return RedisPublisher(settings_of(broker))

    def dead_letter_reader(
        self, broker: BrokerSettings, topic: TopicSettings
    ) -> RedisDeadLetterReader:
        """Return a reader of a topic's dead-letter queue; it connects when it reads."""
        return RedisDeadLetterReader(settings_of(broker, topic))

    def topic_admin(
        self, broker: BrokerSettings, topic: TopicSettings
    ) -> RedisTopicAdmin:
        """Return the admin that inspects a topic's streams; it connects when asked."""
        return RedisTopicAdmin(settings_of(broker, topic))

    def broker_admin(self, broker: BrokerSettings) -> RedisBrokerAdmin:
        """Return the admin that tests a Redis server and lists its streams."""
        return RedisBrokerAdmin(settings_of(broker))

    def queue_by_convention(self, topic: str) -> str:
        """Return "", no conventional dead-letter queue: each team names its own."""
        return ""

    def ordering(self, topic: str) -> Ordering:
        """Return the ordering of Redis streams: all have the same."""
        return CAPABILITIES.ordering


ADAPTER = RedisAdapter()
