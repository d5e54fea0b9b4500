from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis import Redis

from poisonweb.sample import producer
from poisonweb.sample.event_ledger import Ledger, What, read
from poisonweb.sample.producer import BURST, Producer
from poisonweb.sample.producer_messages import CONTENT_TOPIC, ORDERS
from tests.waiting import wait_until

HOUR = 3_600_000


class CountedTurns(threading.Event):
    """An event that counts its waits: the producer waits on it in each turn."""

    turns = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.turns += 1
        return super().wait(timeout)

    def await_more(self, number: int) -> None:
        enough = self.turns + number
        wait_until(lambda: self.turns >= enough)


@contextmanager
def producing(
    redis: Redis, ledger: Ledger, *, rate: float, stop: threading.Event | None = None
) -> Iterator[Producer]:
    stop = stop or threading.Event()
    producer = Producer(redis, ledger, rate=rate, stop=stop)
    thread = threading.Thread(target=producer.run)
    thread.start()
    try:
        yield producer
    finally:
        stop.set()
        thread.join()


def entries_of(redis: Redis, topic: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    entries: Any = redis.xrange(topic)
    return list(entries)


def test_the_first_start_of_all_begins_with_a_burst(
    redis: Redis, ledger: Ledger
) -> None:
    with producing(redis, ledger, rate=0.1):
        wait_until(lambda: len(entries_of(redis, ORDERS)) >= BURST[ORDERS])

    assert len(entries_of(redis, CONTENT_TOPIC)) >= BURST[CONTENT_TOPIC]
    noted = [line.bookmark for line in read(ledger.path) if line.topic == CONTENT_TOPIC]
    assert noted == [
        bookmark.decode() for bookmark, _ in entries_of(redis, CONTENT_TOPIC)
    ]


def test_another_start_goes_on_with_the_numbers(redis: Redis, ledger: Ledger) -> None:
    ledger.write(What.PRODUCED, topic=CONTENT_TOPIC, bookmark="1-0")
    redis.set(f"{CONTENT_TOPIC}:numbers", 41)

    with producing(redis, ledger, rate=0.1):
        wait_until(lambda: len(entries_of(redis, CONTENT_TOPIC)) == 1)

    ((_, fields),) = entries_of(redis, CONTENT_TOPIC)
    assert json.loads(fields[b"body"]) == {"id": 42}


def test_paused_it_sends_nothing_more(redis: Redis, ledger: Ledger) -> None:
    ledger.write(What.PRODUCED, topic=CONTENT_TOPIC, bookmark="1-0")

    stop = CountedTurns()
    with producing(redis, ledger, rate=100, stop=stop) as producer:
        wait_until(lambda: len(entries_of(redis, CONTENT_TOPIC)) > 5)
        producer.pause()
        stop.await_more(2)  # the first may have begun
        before = len(entries_of(redis, CONTENT_TOPIC))
        stop.await_more(20)

    assert len(entries_of(redis, CONTENT_TOPIC)) == before


def test_old_entries_are_trimmed_unless_they_are_unsettled(
    redis: Redis, ledger: Ledger
) -> None:
    now = now_of(redis)
    old = now - 2 * HOUR
    # Redis cuts whole nodes of 100 entries only.
    for n in range(500):
        redis.xadd(ORDERS, {"body": "x"}, id=f"{old}-{n + 1}")
        redis.xadd(CONTENT_TOPIC, {"body": "x"}, id=f"{old}-{n + 1}")
    for topic in (ORDERS, CONTENT_TOPIC):
        redis.xgroup_create(topic, "quick", id="0")
        redis.xgroup_create(topic, "slow", id="0")
        redis.xreadgroup("quick", "c", {topic: ">"}, noack=True)
    # One group has read little, the other has settled little.
    redis.xreadgroup("slow", "c", {ORDERS: ">"}, count=150, noack=True)
    redis.xreadgroup("slow", "c", {CONTENT_TOPIC: ">"})
    redis.xack(CONTENT_TOPIC, "slow", *(f"{old}-{n + 1}" for n in range(150)))

    trim(redis, ledger)

    assert entries_of(redis, ORDERS)[0][0] <= b"%d-150" % old
    assert (
        len(entries_of(redis, ORDERS)) == len(entries_of(redis, CONTENT_TOPIC)) == 400
    )


def test_settled_entries_are_kept_for_an_hour(redis: Redis, ledger: Ledger) -> None:
    now = now_of(redis)
    for topic in (ORDERS, CONTENT_TOPIC):
        redis.xgroup_create(topic, "quick", id="0", mkstream=True)
        for n in range(150):
            redis.xadd(topic, {"body": "x"}, id=f"{now - HOUR // 2}-{n + 1}")
        redis.xreadgroup("quick", "c", {topic: ">"}, noack=True)

    trim(redis, ledger)

    assert len(entries_of(redis, ORDERS)) == 150


def now_of(redis: Redis) -> int:
    seconds: Any = redis.time()
    return int(seconds[0]) * 1000


def trim(redis: Redis, ledger: Ledger) -> None:
    Producer(redis, ledger, rate=1.0, stop=threading.Event())._trim()
    assert producer.RETENTION.total_seconds() * 1000 == HOUR
