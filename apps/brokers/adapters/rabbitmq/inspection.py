"""Admin ports of RabbitMQ: AMQP gives exact counts, HTTP the rest; nothing changes."""

from __future__ import annotations

import logging
import time
from datetime import datetime
from functools import cache

from pika import spec

from apps.brokers.adapter_contract import ConsumerPosition, Delivered, FoundTopic
from apps.brokers.adapters.rabbitmq.address_and_queues import (
    RabbitAddress,
    RabbitQueues,
    queue_missing,
)
from apps.brokers.adapters.rabbitmq.amqp_connection import RabbitRejected, RabbitWire
from apps.brokers.adapters.rabbitmq.dead_letter_queue_finder import (
    RabbitExchange,
    RabbitQueue,
    dead_letter_queue_of,
)
from apps.brokers.adapters.rabbitmq.management_api_client import RabbitManagement
from apps.core import clock
from apps.core.errors import Refused, Unavailable

MOST_TOPICS = 10_000
# A missing management plugin is not asked again for so long.
ABSENT_SECONDS = 60.0

_LOG = logging.getLogger(__name__)


class RabbitQueueCounter:
    """Counter of ready messages; it opens one connection when it needs it."""

    def __init__(self, address: RabbitAddress) -> None:
        self._address = address
        self._wire: RabbitWire | None = None

    @property
    def wire(self) -> RabbitWire:
        """Return an open connection to RabbitMQ, a new one if the last was closed."""
        if self._wire is None or not self._wire.is_open:
            self.close()
            self._wire = RabbitWire(self._address)
        return self._wire

    def count(self, queue: str) -> tuple[int, int] | None:
        """Count a RabbitMQ queue's ready messages and consumers; None if missing."""
        try:
            return self._declare_passively(queue)
        except RabbitRejected as rejection:
            if rejection.names_no_queue:
                return None
            self.close()
            # The queue exists, but its node is down or just starting.
            raise Unavailable(str(rejection)) from rejection
        except Unavailable:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection to RabbitMQ; the next count opens another."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _declare_passively(self, queue: str) -> tuple[int, int]:
        """Ask for a RabbitMQ queue's (messages, consumers), without creating it."""
        wire = self.wire
        wire.open_channel()
        declare = spec.Queue.Declare(queue=queue, passive=True)
        answer = wire.call(declare, spec.Queue.DeclareOk)
        return answer.message_count, answer.consumer_count


class RabbitTopicAdmin:
    """Admin of the queue of a topic and of its dead-letter queue."""

    def __init__(self, address: RabbitAddress, queues: RabbitQueues) -> None:
        self._server = address.server
        self._queues = queues
        self._counter = RabbitQueueCounter(address)
        self._management = RabbitManagement(address)
        self._absent_until = 0.0

    def consumers(self) -> list[ConsumerPosition]:
        """Return a RabbitMQ queue's only position: all its consumers share it.

        Settled messages are gone, so it has no number; only the messages ahead are
        known.
        """
        counts = self._counter.count(self._queues.topic)
        if counts is None:
            return []
        ready, consumers = counts
        position = ConsumerPosition(
            consumer_group="",
            bookmark="",
            seq=0,
            head_bookmark="",
            head_seq=0,
            lag=ready,
            pending=self._of_management("messages_unacknowledged") or 0,
            oldest_pending_seconds=None,
            clients=consumers,
        )
        return [position]

    def depth(self) -> int | None:
        """Count the ready messages of RabbitMQ's dead-letter queue.

        Those that a reader took are not among them.
        """
        counts = self._counter.count(self._queues.dead_letters)
        if counts is None:
            raise queue_missing(self._server, self._queues.dead_letters)
        return counts[0]

    def oldest_at(self) -> datetime | None:
        """Return None: RabbitMQ has the oldest dead letter's time only in messages."""
        return None

    def delivered(self) -> Delivered | None:
        """Count RabbitMQ's deliveries of a queue, also repeated.

        None without the management plugin.
        """
        total = self._of_management("message_stats", "deliver_get")
        return None if total is None else Delivered(total=total, at=clock.now())

    def close(self) -> None:
        """Close the connections to RabbitMQ and its management plugin."""
        self._counter.close()
        self._management.close()

    def _of_management(self, *path: str) -> int | None:
        """Return a number of the topic's queue from the management plugin, or None."""
        if time.monotonic() < self._absent_until:
            return None
        try:
            value: object = self._management.queue(self._queues.topic)
        except (Unavailable, Refused) as why:
            self._absent_until = time.monotonic() + ABSENT_SECONDS
            _LOG.info("%s", why)
            return None
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return value if isinstance(value, int) else None


class RabbitBrokerAdmin:
    """Admin of one virtual host of a broker."""

    def __init__(self, address: RabbitAddress) -> None:
        self._address = address
        self._counter = RabbitQueueCounter(address)
        self._management = RabbitManagement(address)

    def ping(self) -> str:
        """Connect to RabbitMQ and its management plugin; describe both in words."""
        self._counter.close()
        wire = self._counter.wire
        over = f", over {wire.tls}" if wire.tls else ""
        where = f", virtual host {self._address.vhost}{over}"
        if not self._address.has_management_url:
            return (
                f"{wire.version} (its management plugin was not asked: "
                f"no management_url is set){where}"
            )
        try:
            self._management.try_out()
        except (Unavailable, Refused) as why:
            raise Refused(f"{wire.version}{where}. But {why}") from why
        managed = f" with its management at {self._address.management_url}"
        return f"{wire.version}{managed}{where}"

    def discover(self) -> list[FoundTopic]:
        """List RabbitMQ's queues as topics, each with its dead-letter queue."""
        queues = [
            RabbitQueue.of(details)
            for details in self._management.queues()
            if not details.get("exclusive") and details.get("type") != "stream"
        ]
        exchange_of = cache(self._read_exchange)
        names = {queue.name for queue in queues}
        dead_letter_queues = {
            queue.name: dead_letter_queue_of(queue, exchange_of) for queue in queues
        }
        # A dead-letter queue that has one of its own is also a topic.
        ends = {
            end
            for end in dead_letter_queues.values()
            if not dead_letter_queues.get(end)
        }
        topics = sorted(names - ends)[:MOST_TOPICS]
        return [self._topic(name, dead_letter_queues[name]) for name in topics]

    def close(self) -> None:
        """Close the connections to RabbitMQ and its management plugin."""
        self._counter.close()
        self._management.close()

    def _read_exchange(self, name: str) -> RabbitExchange | None:
        """Return a RabbitMQ exchange with its bindings; None if it is missing."""
        details = self._management.exchange(name)
        if details is None:
            return None
        return RabbitExchange.of(details["type"], self._management.bindings_of(name))

    def _topic(self, name: str, dead_letter_queue: str) -> FoundTopic:
        """Build a RabbitMQ topic with its depths.

        It gets its dead-letter queue only if that exists.
        """
        there = self._depth(dead_letter_queue) if dead_letter_queue else None
        return FoundTopic(
            name=name,
            depth=self._depth(name),
            # A dead-letter queue that was never created receives nothing.
            dead_letter_queue=dead_letter_queue if there is not None else "",
            dead_letters=there,
        )

    def _depth(self, queue: str) -> int | None:
        """Count a RabbitMQ queue's ready messages; None if the queue is missing."""
        counts = self._counter.count(queue)
        return counts[0] if counts else None
