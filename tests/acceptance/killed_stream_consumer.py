"""A consumer that is killed and knows only what its guard wrote down before.

It reads a Redis stream in a consumer group, first the messages that it was handed and
has not settled. Its processes are forked from one that has loaded everything, so that a
start costs milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError

from poisonguard import Guard, RetryPolicy
from poisonguard.readers.redis_streams import Entry, RedisStreamsReader

GROUP, CLIENT = "billing", "billing-1"
READER = RedisStreamsReader()
BATCH = 64
# Bytes, a part of a page: where a page ends, a kill cuts what is being written.
LINE = 32
# Alone, a message takes no time: a kill from outside that hits the same one twice would
# be its own doing, for all that anybody can tell.
REST_SECONDS = 0.001
IDLE_MILLISECONDS = 20


@dataclass(frozen=True, kw_only=True)
class ConsumerFiles:
    """Where a consumer finds its messages, and where it notes what it does."""

    topic: str
    redis_url: str
    url: str
    api_key: str
    folder: Path
    width: int

    @property
    def received(self) -> Path:
        return self.folder / "received"

    @property
    def begun(self) -> Path:
        return self.folder / "begun"

    @property
    def handled(self) -> Path:
        return self.folder / "handled"

    @property
    def journal(self) -> Path:
        return self.folder / "journal"


def _exit() -> None:
    os._exit(0)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault() -> None:
    ctypes.string_at(0)


def _in_a_helper() -> None:
    helper = threading.Thread(target=_segfault)
    helper.start()
    helper.join()


def _exec() -> None:
    os.execv("/bin/true", ["true"])


DEATHS: dict[bytes, Callable[[], None]] = {
    b"exit": _exit,
    b"kill": _kill,
    b"abort": os.abort,
    b"segfault": _segfault,
    b"helper": _in_a_helper,
    b"exec": _exec,
}


def consume(place: ConsumerFiles) -> None:
    """Handle messages of the stream until killed, or until SIGTERM asks to stop."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    guard = Guard(
        topic=place.topic,
        consumer_group=GROUP,
        client_name=CLIENT,
        url=place.url,
        api_key=place.api_key,
        reader=READER,
        policy=RetryPolicy(max_attempts=3),
        journal=place.journal,
        concurrency=place.width,
    )
    with guard, Redis.from_url(place.redis_url, protocol=2) as redis:
        work: SimpleQueue[Entry | None] = SimpleQueue()
        hands = [
            threading.Thread(target=_work, args=(guard, redis, place, work))
            for _ in range(place.width)
        ]
        for hand in hands:
            hand.start()
        for entry in _entries(redis, place, stop):
            while work.qsize() > BATCH:
                time.sleep(REST_SECONDS)
            work.put(entry)
        for _ in hands:
            work.put(None)
        for hand in hands:
            hand.join()


def _work(
    guard: Guard, redis: Redis, place: ConsumerFiles, work: SimpleQueue[Entry | None]
) -> None:
    with (
        place.received.open("ab", 0) as received,
        place.begun.open("ab", 0) as begun,
        place.handled.open("ab", 0) as handled,
    ):

        def handle(entry: Entry) -> None:
            line = line_of(entry)
            body = READER.body(entry)
            begun.write(line)
            if place.width > 1:
                time.sleep(REST_SECONDS)
            if body in DEATHS:
                DEATHS[body]()
            handled.write(line)

        while (entry := work.get()) is not None:
            received.write(line_of(entry))
            if guard.handle(entry, handle).settles:
                redis.xack(place.topic, GROUP, entry[0])
            time.sleep(REST_SECONDS)


def line_of(entry: Entry) -> bytes:
    return f"{READER.bookmark(entry):<{LINE - 1}}\n".encode()


def _entries(
    redis: Redis, place: ConsumerFiles, stop: threading.Event
) -> Iterator[Any]:
    """Yield the stream's unsettled messages of ours, then its new ones."""
    make_group(redis, place.topic)
    cursor = "0"
    while not stop.is_set():
        streams: Any = redis.xreadgroup(
            GROUP, CLIENT, {place.topic: cursor}, count=BATCH, block=IDLE_MILLISECONDS
        )
        entries = [entry for _, some in streams for entry in some]
        yield from entries
        if cursor != ">":
            cursor = entries[-1][0] if entries else ">"


def make_group(redis: Redis, topic: str) -> None:
    try:
        redis.xgroup_create(topic, GROUP, id="0", mkstream=True)
    except ResponseError as refusal:
        if not str(refusal).startswith("BUSYGROUP"):
            raise
