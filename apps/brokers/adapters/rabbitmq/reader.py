"""Empties a dead-letter queue as its consumer, and gives back what it does not settle.

RabbitMQ knows no visibility timeout: what was handed out and is not acknowledged comes
back when the connection ends. It ends a channel by itself on which a delivery waits
longer than 30 minutes; a reader begins again before that.
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

from apps.brokers.adapters.rabbitmq import amqp_properties as properties
from apps.brokers.adapters.rabbitmq.management import RabbitManagement
from apps.brokers.adapters.rabbitmq.settings import (
    RabbitAddress,
    RabbitQueues,
    queue_missing,
)
from apps.brokers.adapters.rabbitmq.topology import RabbitQueue
from apps.brokers.adapters.rabbitmq.wire import (
    RabbitArrival,
    RabbitRejected,
    RabbitWire,
)
from apps.brokers.errors import MaybeSent
from apps.brokers.ports import BATCH_BYTES, DeadLetter, Header
from apps.core.errors import Refused, Unavailable
from poisonguard.contract import REDRIVE_HEADER

# How many of unknown size are asked for at once.
CAREFUL_STEP = 8
MOST_AT_ONCE = 2_000
# What is held is read anew before RabbitMQ's own limit, of 30 minutes, closes in.
LONGEST_HELD_SECONDS = 20 * 60.0

_DEATHS = b"x-death"
_MARK = REDRIVE_HEADER.encode()
_LOG = logging.getLogger(__name__)


class RabbitConsumption:
    """What one connection was handed from a queue; its messages go back when it ends.

    RabbitMQ bounds by number what it hands to a consumer before that acknowledges; who
    needs more becomes another consumer, with a higher bound.
    """

    def __init__(self, address: RabbitAddress, queue: str) -> None:
        self.epoch = uuid4().hex
        self._queue = queue
        self._bound = 0
        self._consumer = ""
        self._consumers = 0
        # By delivery tag: who holds it, and since when.
        self._unsettled: dict[int, tuple[str, float]] = {}
        self._wire = RabbitWire(address)
        self._wire.open_channel()

    @property
    def longest_held(self) -> float:
        """Count the seconds for which the oldest delivery waits to be settled."""
        oldest = next(iter(self._unsettled.values()), None)
        return time.monotonic() - oldest[1] if oldest else 0.0

    def next(self, *, bound: int) -> RabbitArrival | None:
        """Return the next of what is in the queue now; None when nothing is left."""
        arrival = self._take(wait=0)
        if arrival is None:
            self._allow(bound)
            self._sync()
            arrival = self._take(wait=0)
        return arrival

    def wait(self, seconds: float) -> RabbitArrival | None:
        """Return the next that comes within so many seconds."""
        return self._take(wait=seconds)

    def acknowledge(self, tags: Iterable[int]) -> None:
        """Settle these for good; true once this returns."""
        open_tags = {tag for tag in tags if tag in self._unsettled}
        if not open_tags:
            return
        together = self._first_of_all(open_tags)
        if together:
            self._wire.send(spec.Basic.Ack(together[-1], multiple=True))
        for tag in sorted(open_tags.difference(together)):
            self._wire.send(spec.Basic.Ack(tag))
        for tag in open_tags:
            del self._unsettled[tag]
        self._sync()

    def give_back(self, tags: Iterable[int]) -> None:
        """Put these back, and what nobody was handed yet; ask for no more for now."""
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
        self._wire.close()

    def _take(self, *, wait: float) -> RabbitArrival | None:
        until = time.monotonic() + wait
        while True:
            remaining = max(0.0, until - time.monotonic())
            arrival = self._wire.receive(wait=remaining)
            if arrival is None:
                return None
            if isinstance(arrival.method, spec.Basic.Deliver):
                self._note(arrival.method)
                return arrival
            if isinstance(arrival.method, spec.Basic.Cancel):
                raise MaybeSent(
                    f"{self._wire.server} hands out no more of {self._queue}."
                )

    def _note(self, delivery: Any) -> None:
        holder = delivery.consumer_tag, time.monotonic()
        self._unsettled[delivery.delivery_tag] = holder

    def _allow(self, bound: int) -> None:
        """See to it that more can come, if there is more."""
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
        if self._consumer:
            cancel = spec.Basic.Cancel(self._consumer)
            self._wire.call(cancel, spec.Basic.CancelOk)
        self._consumer, self._bound = "", 0

    def _sync(self) -> None:
        """Wait until the queue has done all it was told, and what it sent is here.

        The queue's answer stands behind its deliveries to the channel; the channel's
        own, behind what it passed on of them to us.
        """
        self._wire.send(spec.Queue.Declare(queue=self._queue, passive=True))
        self._wire.send(spec.Basic.Qos(prefetch_count=self._bound))
        self._wire.answer(spec.Queue.DeclareOk)
        self._wire.answer(spec.Basic.QosOk)

    def _first_of_all(self, open_tags: set[int]) -> list[int]:
        """Give those which one acknowledgement settles, with nothing between them."""
        first = list[int]()
        for tag in self._unsettled:
            if tag not in open_tags:
                break
            first.append(tag)
        return first


class DeliveryLimits:
    """How often each queue hands a message out before it gives up on it.

    Nothing in a message tells it, so the management plugin is asked, once for each
    queue and reader; None where that cannot tell.
    """

    def __init__(self, address: RabbitAddress) -> None:
        self._management = RabbitManagement(address)
        self._limits: dict[str, int | None] = {}

    def of(self, queue: str) -> int | None:
        if queue not in self._limits:
            self._limits[queue] = self._ask(queue)
        return self._limits[queue]

    def close(self) -> None:
        self._management.close()

    def _ask(self, queue: str) -> int | None:
        try:
            details = self._management.queue(queue)
        except (Unavailable, Refused) as why:
            _LOG.info("%s", why)
            return None
        limit = RabbitQueue.of(details).delivery_limit if details else None
        # A message is given up when it comes back once more than the limit says.
        return None if limit is None else limit + 1


class RabbitDeadLetterReader:
    """Reads one dead-letter queue; consumes from the first `read` on."""

    def __init__(self, address: RabbitAddress, queues: RabbitQueues) -> None:
        self._address = address
        self._queue = queues.dead_letters
        self._deliveries = DeliveryLimits(address)
        self._largest = 0
        self._consumption: RabbitConsumption | None = None

    def read(self, *, limit: int, wait: float) -> list[DeadLetter]:
        try:
            return self._batch(limit, wait)
        except (RabbitRejected, Unavailable) as trouble:
            self.close()
            if isinstance(trouble, RabbitRejected) and trouble.names_no_queue:
                raise queue_missing(self._address.server, self._queue) from trouble
            raise

    def peek(self, *, limit: int) -> list[DeadLetter]:
        """Nothing: RabbitMQ marks whatever it has shown to anybody as redelivered."""
        return []

    def acknowledge(self, handles: Sequence[str]) -> None:
        if not handles:
            return
        tags = self._tags(handles)
        if len(tags) < len(handles) or self._consumption is None:
            self.close()
            where = f"{self._address.server}, on a connection that is gone"
            raise Unavailable(f"They were read from {where}: they come again.")
        self._settle(self._consumption.acknowledge, tags)

    def extend(self, handles: Sequence[str]) -> None:
        """Nothing hides a message but our connection, for as long as it lasts."""

    def release(self, handles: Sequence[str]) -> None:
        """Those of a connection that is gone are back already."""
        if self._consumption is not None:
            self._settle(self._consumption.give_back, self._tags(handles))

    def dead_letter_exhausted(self) -> int:
        """RabbitMQ does so itself, by its delivery limit."""
        return 0

    def close(self) -> None:
        consumption, self._consumption = self._consumption, None
        if consumption is not None:
            consumption.close()
        self._deliveries.close()

    def _batch(self, limit: int, wait: float) -> list[DeadLetter]:
        consumption = self._consuming()
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

    def _consuming(self) -> RabbitConsumption:
        if self._consumption is None:
            self._consumption = RabbitConsumption(self._address, self._queue)
        if self._consumption.longest_held > LONGEST_HELD_SECONDS:
            raise Unavailable(
                f"{self._address.server} wants every message settled within half an "
                "hour: those that are held are given back, and read again."
            )
        return self._consumption

    def _bound(self, limit: int) -> int:
        """Decide how many the broker may send ahead, their sizes being unknown."""
        if not self._largest:
            return min(limit, CAREFUL_STEP)
        return max(1, min(limit, MOST_AT_ONCE, BATCH_BYTES // self._largest))

    def _settle(self, how: Callable[[Iterable[int]], None], tags: list[int]) -> None:
        try:
            how(tags)
        except (RabbitRejected, Unavailable):
            self.close()
            raise

    def _tags(self, handles: Sequence[str]) -> list[int]:
        """Give the delivery tags of this connection's; the others say nothing now."""
        epoch = self._consumption.epoch if self._consumption else ""
        parts = (handle.partition(".") for handle in handles)
        return [
            int(tag)
            for handle_epoch, _, tag in parts
            if handle_epoch == epoch and tag.isdigit()
        ]

    def _letter(self, arrival: RabbitArrival, epoch: str) -> DeadLetter:
        headers = properties.decode(arrival.properties)
        death = latest_death(headers)
        return DeadLetter(
            queue=self._queue,
            bookmark=name_of(headers),
            body=arrival.body,
            headers=headers,
            size=len(arrival.body) + sum(len(n) + len(v) for n, v in headers),
            dequeue_count=self._count(death),
            receipt=f"{epoch}.{arrival.method.delivery_tag}",
            redelivered=arrival.method.redelivered,
            enqueued_at=_moment(death),
        )

    def _count(self, death: dict[str, Any]) -> int | None:
        """Tell how often consumers were handed it, where its death says so."""
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
    """Give a name that lasts to a dead letter whose producer gave its message an id.

    A message can die more than once under its id, so what the broker says of this very
    death belongs to the name, and the mark of the redrive that came before it. "" where
    the broker says nothing: then nothing could tell two deaths apart.
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
    """Give the first entry of `x-death`, which is the last of its deaths."""
    raw = next((value for name, value in headers if name == _DEATHS), b"")
    try:
        deaths = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    first = deaths[0] if isinstance(deaths, list) and deaths else {}
    return first if isinstance(first, dict) else {}


def _moment(death: dict[str, Any]) -> datetime | None:
    """Tell when it died; of several deaths in one queue, RabbitMQ dates the first."""
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
