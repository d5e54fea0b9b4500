"""Send messages to three streams, and trim the streams."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from redis import Redis
from redis.exceptions import RedisError

from poisonweb.sample import producer_messages
from poisonweb.sample.back_off import BackOff
from poisonweb.sample.event_ledger import Ledger, What
from poisonweb.sample.producer_messages import SampleMessage

log = logging.getLogger(__name__)

Make = Callable[[int], SampleMessage]

# Sent at the first start, so that the pages show something within seconds.
BURST = {
    producer_messages.CONTENT_TOPIC: 130,
    producer_messages.ORDERS: 80,
    producer_messages.SHIPMENTS: 12,
}
MAKERS: dict[str, Make] = {
    producer_messages.CONTENT_TOPIC: producer_messages.content,
    producer_messages.ORDERS: producer_messages.order,
    producer_messages.SHIPMENTS: producer_messages.shipment,
}
USUALLY = (
    producer_messages.CONTENT_TOPIC,
    producer_messages.ORDERS,
    producer_messages.CONTENT_TOPIC,
)
TURNS = (*USUALLY * 4, producer_messages.SHIPMENTS)
TRIM_EVERY = timedelta(minutes=1)
RETENTION = timedelta(hours=1)


class Producer:
    def __init__(
        self, redis: Redis, ledger: Ledger, *, rate: float, stop: threading.Event
    ) -> None:
        self._redis = redis
        self._ledger = ledger
        self._seconds = 1 / rate
        self._stop = stop
        self._is_paused = False
        self._trim_at = datetime.now(UTC) + TRIM_EVERY

    def pause(self) -> None:
        """Stop sending the sample's messages; safe to call from a signal handler."""
        self._is_paused = True

    def run(self) -> None:
        """Send the sample's messages and trim their Redis streams until `stop`.

        Wait while Redis is away.
        """
        back_off = BackOff(self._stop)
        turns = self._turns()
        while not self._stop.is_set():
            try:
                self._take_turn(turns)
                back_off.reset()
            except RedisError as trouble:
                log.warning("the producer waits for Redis: %s", trouble)
                back_off.wait()

    def _turns(self) -> Iterator[tuple[str, float]]:
        """Yield the sample's next topic to send to, and the seconds to wait then."""
        if self._ledger.began() is None:
            for topic, number in BURST.items():
                yield from itertools.repeat((topic, 0.0), number)
        for topic in itertools.cycle(TURNS):
            yield topic, self._seconds

    def _take_turn(self, turns: Iterator[tuple[str, float]]) -> None:
        """Send the sample's next message and wait; trim the streams when due.

        A paused producer only waits.
        """
        if self._is_paused:
            self._stop.wait(self._seconds)
        else:
            topic, rest = next(turns)
            self._send(topic)
            self._stop.wait(rest)
        if datetime.now(UTC) >= self._trim_at:
            self._trim_at = datetime.now(UTC) + TRIM_EVERY
            self._trim()

    def _send(self, topic: str) -> None:
        """Send the sample's next message of a topic, and write it to the ledger."""
        # Redis numbers the messages, so a restart continues the numbers.
        number = self._redis.incr(f"{topic}:numbers")
        message = MAKERS[topic](int(number))
        bookmark = self._redis.xadd(topic, message.fields)
        self._ledger.write(What.PRODUCED, topic=topic, bookmark=_text(bookmark))

    def _trim(self) -> None:
        """Remove the sample's old messages from Redis, except unsettled ones."""
        old = int((datetime.now(UTC) - RETENTION).timestamp() * 1000)
        for topic in filter(self._redis.exists, MAKERS):
            needed = [
                self._oldest_needed(topic, group)
                for group in self._redis.xinfo_groups(topic)
            ]
            if needed:
                oldest = min(*needed, (old, 0))
                self._redis.xtrim(topic, minid="{}-{}".format(*oldest))

    def _oldest_needed(self, topic: str, group: dict[str, bytes]) -> tuple[int, int]:
        """Return the oldest id in the sample's stream that a group still needs.

        The group has not settled it, or has read it last.
        """
        pending = self._redis.xpending(topic, group["name"])
        return _parse_id(pending["min"] or group["last-delivered-id"])


def _parse_id(bookmark: bytes) -> tuple[int, int]:
    """Parse a Redis stream id to two numbers: as text, 9-0 would sort after 10-0."""
    milliseconds, _, number = bookmark.partition(b"-")
    return int(milliseconds), int(number)


def _text(bookmark: object) -> str:
    return bookmark.decode() if isinstance(bookmark, bytes) else str(bookmark)
