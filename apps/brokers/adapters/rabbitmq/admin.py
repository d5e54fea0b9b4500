"""Looks at queues without touching them: by AMQP what is exact, by HTTP the rest."""

from __future__ import annotations

import logging
import time
from datetime import datetime
from functools import cache

from pika import spec

from apps.brokers.adapters.rabbitmq.management import RabbitManagement
from apps.brokers.adapters.rabbitmq.settings import (
    RabbitAddress,
    RabbitQueues,
    queue_missing,
)
from apps.brokers.adapters.rabbitmq.topology import RabbitExchange, RabbitQueue, partner
from apps.brokers.adapters.rabbitmq.wire import RabbitRejected, RabbitWire
from apps.brokers.ports import ConsumerPosition, Delivered, FoundTopic
from apps.core import clock
from apps.core.errors import Refused, Unavailable

MOST_TOPICS = 10_000
# A management that is not there is not asked again for so long.
ABSENT_SECONDS = 60.0

_LOG = logging.getLogger(__name__)


class RabbitQueueCounter:
    """Counts what is ready in queues; one connection, opened when it is needed."""

    def __init__(self, address: RabbitAddress) -> None:
        self._address = address
        self._wire: RabbitWire | None = None

    @property
    def wire(self) -> RabbitWire:
        if self._wire is None or not self._wire.is_open:
            self.close()
            self._wire = RabbitWire(self._address)
        return self._wire

    def count(self, queue: str) -> tuple[int, int] | None:
        """Count a queue's ready messages and its consumers; None if there is none."""
        try:
            return self._declared(queue)
        except RabbitRejected as rejection:
            if rejection.names_no_queue:
                return None
            self.close()
            # There is one, but the node that holds it is down, or just starting.
            raise Unavailable(str(rejection)) from rejection
        except Unavailable:
            self.close()
            raise

    def close(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _declared(self, queue: str) -> tuple[int, int]:
        wire = self.wire
        wire.open_channel()
        declare = spec.Queue.Declare(queue=queue, passive=True)
        answer = wire.call(declare, spec.Queue.DeclareOk)
        return answer.message_count, answer.consumer_count


class RabbitTopicAdmin:
    """Looks at the queue of a topic and at that of its dead letters."""

    def __init__(self, address: RabbitAddress, queues: RabbitQueues) -> None:
        self._server = address.server
        self._queues = queues
        self._counter = RabbitQueueCounter(address)
        self._management = RabbitManagement(address)
        self._absent_until = 0.0

    def consumers(self) -> list[ConsumerPosition]:
        """Give the one position there is: all consumers of a queue share it.

        What is behind it is gone, so it has no number; what is before it can be told.
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
        """Count what waits to be read; what a reader holds is not among it."""
        counts = self._counter.count(self._queues.dead_letters)
        if counts is None:
            raise queue_missing(self._server, self._queues.dead_letters)
        return counts[0]

    def oldest_at(self) -> datetime | None:
        """Nobody can tell without taking the message."""
        return None

    def delivered(self) -> Delivered | None:
        """Count deliveries, repeated ones too; None without the management plugin."""
        total = self._of_management("message_stats", "deliver_get")
        return None if total is None else Delivered(total=total, at=clock.now())

    def close(self) -> None:
        self._counter.close()
        self._management.close()

    def _of_management(self, *path: str) -> int | None:
        """Give a number that only the management plugin knows of the topic's queue."""
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
    """Looks at one virtual host of a broker."""

    def __init__(self, address: RabbitAddress) -> None:
        self._address = address
        self._counter = RabbitQueueCounter(address)
        self._management = RabbitManagement(address)

    def ping(self) -> str:
        self._counter.close()
        wire = self._counter.wire
        over = f", over {wire.tls}" if wire.tls else ""
        where = f", virtual host {self._address.vhost}{over}"
        if not self._address.has_management_url:
            return (
                f"{wire.version} (its management was not asked: no management_url is "
                f"told){where}"
            )
        try:
            self._management.try_out()
        except (Unavailable, Refused) as why:
            raise Refused(f"{wire.version}{where}. But {why}") from why
        managed = f" with its management at {self._address.management_url}"
        return f"{wire.version}{managed}{where}"

    def discover(self) -> list[FoundTopic]:
        queues = [
            RabbitQueue.of(details)
            for details in self._management.queues()
            if not details.get("exclusive") and details.get("type") != "stream"
        ]
        exchange_of = cache(self._exchange)
        names = {queue.name for queue in queues}
        partners = {queue.name: partner(queue, exchange_of) for queue in queues}
        # One that has a partner itself is a stage on the way, and a topic as well.
        ends = {end for end in partners.values() if not partners.get(end)}
        topics = sorted(names - ends)[:MOST_TOPICS]
        return [self._topic(name, partners[name]) for name in topics]

    def close(self) -> None:
        self._counter.close()
        self._management.close()

    def _exchange(self, name: str) -> RabbitExchange | None:
        details = self._management.exchange(name)
        if details is None:
            return None
        return RabbitExchange.of(details["type"], self._management.bindings_of(name))

    def _topic(self, name: str, dead_letter_queue: str) -> FoundTopic:
        there = self._depth(dead_letter_queue) if dead_letter_queue else None
        return FoundTopic(
            name=name,
            depth=self._depth(name),
            # A dead-letter queue that was never made gets nothing.
            dead_letter_queue=dead_letter_queue if there is not None else "",
            dead_letters=there,
        )

    def _depth(self, queue: str) -> int | None:
        counts = self._counter.count(queue)
        return counts[0] if counts else None
