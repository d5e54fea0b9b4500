"""Read a dead-letter queue as its consumer, and return what is not settled.

RabbitMQ has no visibility timeout: an unacknowledged message returns to its queue when
the connection ends. RabbitMQ closes a channel on which a delivery waits longer than 30
minutes; a reader starts again before that.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from uuid import uuid4

from pika import spec

from apps.brokers.adapter_contract import BATCH_BYTES, DeadLetter, Header
from apps.brokers.adapters.rabbitmq import amqp_properties as properties
from apps.brokers.adapters.rabbitmq.address_and_queues import (
    RabbitAddress,
    RabbitQueues,
    queue_missing,
)
from apps.brokers.adapters.rabbitmq.amqp_connection import (
    RabbitArrival,
    RabbitRejected,
    RabbitWire,
)
from apps.brokers.adapters.rabbitmq.dead_letter_queue_finder import RabbitQueue
from apps.brokers.adapters.rabbitmq.management_api_client import RabbitManagement
from apps.brokers.errors import MaybeSent
from apps.core.errors import Refused, Unavailable
from poisonguard.contract import REDRIVE_HEADER

# Number of messages of unknown size to ask for at once.
CAREFUL_STEP = 8
MOST_AT_ONCE = 2_000
# Held messages are read again before RabbitMQ's own limit of 30 minutes.
LONGEST_HELD_SECONDS = 20 * 60.0

_DEATHS = b"x-death"
_MARK = REDRIVE_HEADER.encode()
_LOG = logging.getLogger(__name__)


class RabbitConsumption:
    """Deliveries of one connection from a queue; they return when it ends.

    RabbitMQ limits the number of unacknowledged deliveries per consumer; to raise the
    limit, this starts another consumer.
    """

    def __init__(self, address: RabbitAddress, queue: str) -> None:
        self.epoch = uuid4().hex
        self._queue = queue
        self._bound = 0
        self._consumer = ""
        self._consumers = 0
        # By delivery tag: the consumer, and the time of the delivery.
        self._unsettled: dict[int, tuple[str, float]] = {}
        self._wire = RabbitWire(address)
        self._wire.open_channel()

    @property
    def oldest_unsettled_seconds(self) -> float:
        """Return the age of RabbitMQ's oldest unsettled delivery to us, in seconds.

        0 without one.
        """
        oldest = next(iter(self._unsettled.values()), None)
        return time.monotonic() - oldest[1] if oldest else 0.0

    def next(self, *, bound: int) -> RabbitArrival | None:
        """Return the next dead letter that is in the queue now; None at its end."""
        arrival = self._take(wait=0)
        if arrival is None:
            self._ensure_consumer(bound)
            self._sync()
            arrival = self._take(wait=0)
        return arrival

    def wait(self, seconds: float) -> RabbitArrival | None:
        """Return the next dead letter that comes within so many seconds, or None."""
        return self._take(wait=seconds)

    def acknowledge(self, tags: Iterable[int]) -> None:
        """Settle these deliveries; the broker has done so when this returns."""
        open_tags = {tag for tag in tags if tag in self._unsettled}
        if not open_tags:
            return
        together = self._tags_settled_together(open_tags)
        if together:
            self._wire.send(spec.Basic.Ack(together[-1], multiple=True))
        for tag in sorted(open_tags.difference(together)):
            self._wire.send(spec.Basic.Ack(tag))
        for tag in open_tags:
            del self._unsettled[tag]
        self._sync()

    def give_back(self, tags: Iterable[int]) -> None:
        """Give these deliveries and unread ones back to the queue; stop consuming."""
        open_tags = {tag for tag in tags if tag in self._unsettled}
        self._stop()
        self._sync()
        while (arrival := self._take(wait=0)) is not None:
            open_tags.add(arrival.method.delivery_tag)
        for tag in sorted(open_tags):
            self._wire.send(spec.Basic.Nack(tag, requeue=True))
            del self._unsettled[tag]
        self._sync()

    def close(self) -> None:
        """Close the connection; the broker gives unsettled messages back."""
        self._wire.close()

    def _take(self, *, wait: float) -> RabbitArrival | None:
        """Return RabbitMQ's next delivery within so many seconds, else None."""
        until = time.monotonic() + wait
        while True:
            remaining = max(0.0, until - time.monotonic())
            arrival = self._wire.receive(wait=remaining)
            if arrival is None:
                return None
            if isinstance(arrival.method, spec.Basic.Deliver):
                self._note_unsettled(arrival.method)
                return arrival
            if isinstance(arrival.method, spec.Basic.Cancel):
                raise MaybeSent(
                    f"{self._wire.server} stopped our consumer of {self._queue}."
                )

    def _note_unsettled(self, delivery: Any) -> None:
        """Note when RabbitMQ's delivery came, and to which consumer of our reader."""
        holder = delivery.consumer_tag, time.monotonic()
        self._unsettled[delivery.delivery_tag] = holder

    def _ensure_consumer(self, bound: int) -> None:
        """Start a consumer of the dead-letter queue where the current one is full.

        The new one has a higher limit of messages.
        """
        held_count = sum(
            1 for consumer, _ in self._unsettled.values() if consumer == self._consumer
        )
        if held_count < self._bound:
            return
        self._stop()
        self._consumers += 1
        self._bound = bound
        self._consumer = f"poisonweb.{self._consumers}"
        self._wire.call(spec.Basic.Qos(prefetch_count=bound), spec.Basic.QosOk)
        consume = spec.Basic.Consume(queue=self._queue, consumer_tag=self._consumer)
        self._wire.call(consume, spec.Basic.ConsumeOk)

    def _stop(self) -> None:
        """Cancel the consumer of the dead-letter queue, if there is one."""
        if self._consumer:
            cancel = spec.Basic.Cancel(self._consumer)
            self._wire.call(cancel, spec.Basic.CancelOk)
        self._consumer, self._bound = "", 0

    def _sync(self) -> None:
        """Wait until RabbitMQ's queue handled our calls, and its deliveries arrived.

        The queue answers after its deliveries to the channel, and the channel answers
        after it passed these on to us.
        """
        self._wire.send(spec.Queue.Declare(queue=self._queue, passive=True))
        self._wire.send(spec.Basic.Qos(prefetch_count=self._bound))
        self._wire.answer(spec.Queue.DeclareOk)
        self._wire.answer(spec.Basic.QosOk)

    def _tags_settled_together(self, open_tags: set[int]) -> list[int]:
        """List the oldest delivery tags, which one acknowledgement settles together."""
        first = list[int]()
        for tag in self._unsettled:
            if tag not in open_tags:
                break
            first.append(tag)
        return first


class DeliveryLimits:
    """Number of deliveries after which each queue gives a message up.

    No message holds that number, so the management plugin is asked once per queue and
    reader; None where it does not know.
    """

    def __init__(self, address: RabbitAddress) -> None:
        self._management = RabbitManagement(address)
        self._limits: dict[str, int | None] = {}

    def of(self, queue: str) -> int | None:
        """Return how often a queue delivers a message at most; None if unknown."""
        if queue not in self._limits:
            self._limits[queue] = self._ask_limit(queue)
        return self._limits[queue]

    def close(self) -> None:
        """Close the HTTP connection to RabbitMQ's management plugin."""
        self._management.close()

    def _ask_limit(self, queue: str) -> int | None:
        """Ask RabbitMQ's plugin how often a queue delivers at most; None if unknown."""
        try:
            details = self._management.queue(queue)
        except (Unavailable, Refused) as why:
            _LOG.info("%s", why)
            return None
        limit = RabbitQueue.of(details).delivery_limit if details else None
        # A message is given up when it returns once more than the limit.
        return None if limit is None else limit + 1


class RabbitDeadLetterReader:
    """Reader of one dead-letter queue; it consumes from the first `read` on."""

    def __init__(self, address: RabbitAddress, queues: RabbitQueues) -> None:
        self._address = address
        self._queue = queues.dead_letters
        self._deliveries = DeliveryLimits(address)
        self._largest = 0
        self._consumption: RabbitConsumption | None = None

    def read(self, *, limit: int, wait: float) -> list[DeadLetter]:
        """Return the next dead letters; wait at most `wait` seconds for the first."""
        try:
            return self._read_batch(limit, wait)
        except (RabbitRejected, Unavailable) as trouble:
            self.close()
            if isinstance(trouble, RabbitRejected) and trouble.names_no_queue:
                raise queue_missing(self._address.server, self._queue) from trouble
            raise

    def peek(self, *, limit: int) -> list[DeadLetter]:
        """Return []: RabbitMQ marks each message that it shows as redelivered."""
        return []

    def acknowledge(self, handles: Sequence[str]) -> None:
        """Remove these dead letters from their queue; raise Unavailable if closed."""
        if not handles:
            return
        tags = self._tags(handles)
        if len(tags) < len(handles) or self._consumption is None:
            self.close()
            where = f"{self._address.server}, on a connection that is gone"
            raise Unavailable(f"The messages were read from {where}: they come again.")
        self._settle(self._consumption.acknowledge, tags)

    def extend(self, handles: Sequence[str]) -> None:
        """Do nothing: the open connection hides the dead letters from others."""

    def release(self, handles: Sequence[str]) -> None:
        """Return dead letters to their queue; a closed connection already did."""
        if self._consumption is not None:
            self._settle(self._consumption.give_back, self._tags(handles))

    def dead_letter_exhausted(self) -> int:
        """Return 0: RabbitMQ moves them itself, by its delivery limit."""
        return 0

    def close(self) -> None:
        """Close the connection; unsettled dead letters return to their queue."""
        consumption, self._consumption = self._consumption, None
        if consumption is not None:
            consumption.close()
        self._deliveries.close()

    def _read_batch(self, limit: int, wait: float) -> list[DeadLetter]:
        """Read RabbitMQ's dead letters until they are enough, or the queue is empty."""
        consumption = self._open_consumption()
        letters, size = list[DeadLetter](), 0
        while len(letters) < limit and size < BATCH_BYTES:
            arrival = consumption.next(bound=self._bound(limit))
            if arrival is None and not letters and wait > 0:
                arrival = consumption.wait(wait)
            if arrival is None:
                break
            letters.append(self._letter(arrival, consumption.epoch))
            size += letters[-1].size
            self._largest = max(self._largest, letters[-1].size)
        return letters

    def _open_consumption(self) -> RabbitConsumption:
        """Return the open consumer, or start one; raise if letters waited too long."""
        if self._consumption is None:
            self._consumption = RabbitConsumption(self._address, self._queue)
        if self._consumption.oldest_unsettled_seconds > LONGEST_HELD_SECONDS:
            raise Unavailable(
                f"{self._address.server} wants every message settled within half an "
                "hour: those that are held are given back, and read again."
            )
        return self._consumption

    def _bound(self, limit: int) -> int:
        """Return how many messages of unknown size the broker may send ahead."""
        if not self._largest:
            return min(limit, CAREFUL_STEP)
        return max(1, min(limit, MOST_AT_ONCE, BATCH_BYTES // self._largest))

    def _settle(self, how: Callable[[Iterable[int]], None], tags: list[int]) -> None:
        """Settle deliveries by a call; close the connection if that fails."""
        try:
            how(tags)
        except (RabbitRejected, Unavailable):
            self.close()
            raise

    def _tags(self, handles: Sequence[str]) -> list[int]:
        """Return letters' delivery tags of this connection; ignore other handles."""
        epoch = self._consumption.epoch if self._consumption else ""
        parts = (handle.partition(".") for handle in handles)
        return [
            int(tag)
            for handle_epoch, _, tag in parts
            if handle_epoch == epoch and tag.isdigit()
        ]

    def _letter(self, arrival: RabbitArrival, epoch: str) -> DeadLetter:
        """Decode a delivery of RabbitMQ as a dead letter."""
        headers = properties.decode(arrival.properties)
        death = latest_death(headers)
        return DeadLetter(
            queue=self._queue,
            bookmark=name_of(headers),
            body=arrival.body,
            headers=headers,
            size=len(arrival.body) + sum(len(n) + len(v) for n, v in headers),
            dequeue_count=self._delivery_count(death),
            receipt=f"{epoch}.{arrival.method.delivery_tag}",
            redelivered=arrival.method.redelivered,
            enqueued_at=_died_at(death),
        )

    def _delivery_count(self, death: dict[str, Any]) -> int | None:
        """Return how often consumers received a letter, if its death says so."""
        times = death.get("count")
        if not isinstance(times, int):
            return None
        match death.get("reason"):
            case "rejected":
                return times
            case "delivery_limit":
                most = self._deliveries.of(str(death.get("queue")))
                return None if most is None else times * most
            case _:
                return None


def name_of(headers: Sequence[Header]) -> str:
    """Return a lasting name of a dead letter whose producer gave it a message id.

    One id may die more than once, so the name also covers the broker's record of this
    death and the mark of the redrive before it. "" without such a record: then two
    deaths could not be distinguished.
    """
    message_id = properties.message_id(headers)
    story = [h for h in headers if h[0] in {_DEATHS, _MARK}]
    if not message_id or b"\0" in message_id or all(h[0] == _MARK for h in story):
        return ""
    try:
        text = message_id.decode()
    except UnicodeDecodeError:
        return ""
    return f"{text}/{sha256(repr(story).encode()).hexdigest()[:32]}"


def latest_death(headers: Sequence[Header]) -> dict[str, Any]:
    """Return the first entry of `x-death`, which is the latest death."""
    raw = next((value for name, value in headers if name == _DEATHS), b"")
    try:
        deaths = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    first = deaths[0] if isinstance(deaths, list) and deaths else {}
    return first if isinstance(first, dict) else {}


def _died_at(death: dict[str, Any]) -> datetime | None:
    """Return when a message died; of several deaths, `time` is the first's."""
    time_of_death = death.get("time")
    if death.get("count") != 1 or not isinstance(time_of_death, dict):
        return None
    seconds = time_of_death.get("$T")
    if not isinstance(seconds, int):
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
