"""What the contract suite needs of a broker besides its ports: the rest of the world.

A stage is one topic of one broker: its other producers and consumers, its clock, and
the power to take the broker away.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast
from uuid import uuid4

import redis

from apps.brokers import adapters
from apps.brokers.adapters.memory import MemoryBroker
from apps.brokers.adapters.redis_entries import join, split
from apps.brokers.ports import (
    DeadLetterReader,
    Header,
    Outbound,
    Publisher,
    TopicAdmin,
)
from poisonweb.embedded import processes
from poisonweb.embedded import redis as embedded
from poisonweb.embedded.ports import free_port

MAX_DEQUEUE_COUNT = 3
VISIBILITY_TIMEOUT = 60.0

Message = tuple[bytes, tuple[Header, ...]]


class Stage(Protocol):
    topic: str
    queue: str

    def publisher(self) -> Publisher: ...
    def reader(self) -> DeadLetterReader: ...
    def admin(self) -> TopicAdmin: ...

    def put(self, topic: str, body: bytes, headers: Sequence[Header] = ()) -> None:
        """Add a message as any producer would."""

    def contents(self, topic: str) -> list[Message]:
        """Return what is in a topic or a queue, oldest first."""

    def receive(self, *, consumer_group: str, client_name: str) -> list[str]:
        """Hand everything new to a consumer and return the bookmarks."""

    def receive_again(
        self, bookmark: str, *, consumer_group: str, client_name: str
    ) -> None:
        """Hand out once more what is pending."""

    def settle(self, bookmark: str, *, consumer_group: str) -> None: ...
    def advance(self, seconds: float) -> None: ...
    def go_away(self) -> None: ...
    def come_back(self) -> None: ...


class MemoryStage:
    topic = "orders"
    queue = "orders-poison"

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

    def put(self, topic: str, body: bytes, headers: Sequence[Header] = ()) -> None:
        message = Outbound(topic=topic, body=body, headers=tuple(headers))
        self.broker.publisher().publish([message])

    def contents(self, topic: str) -> list[Message]:
        return [(m.body, m.headers) for m in self.broker.published(topic)]

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


class Server:
    """A Redis that can be killed and started again; what it was told, it remembers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        port = free_port()
        self._program = embedded.program(folder, port=port)
        self.url = embedded.url(folder, port=port, database=0)
        self.process = self._spawn()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def start(self) -> None:
        self.process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        log = self._folder / "log"
        process = processes.spawn(self._program, folder=self._folder, log=log)
        while not self._program.ready(process.pid):
            assert process.poll() is None, processes.last_line(log)
            time.sleep(0.01)
        with redis.Redis.from_url(self.url) as client:
            # Else Redis may put a write off for two seconds while the disk is busy.
            client.config_set("appendfsync", "always")
        return process


class RedisStage:
    """A stream of its own on a shared server; the world uses redis-py itself."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = server.url
        self.topic = f"orders {uuid4()}"
        self.queue = f"{self.topic}-poison"
        self.options: dict[str, object] = {}
        self.client = redis.Redis.from_url(self.url, protocol=2)

    def publisher(self) -> Publisher:
        return adapters.publisher(
            kind="redis_streams", url=self.url, options=self.options
        )

    def reader(self) -> DeadLetterReader:
        return adapters.dead_letter_reader(
            kind="redis_streams",
            url=self.url,
            options=self.options,
            topic=self.topic,
            dead_letter_queue="",
            max_dequeue_count=MAX_DEQUEUE_COUNT,
            visibility_timeout=VISIBILITY_TIMEOUT,
        )

    def admin(self) -> TopicAdmin:
        return adapters.topic_admin(
            kind="redis_streams",
            url=self.url,
            options=self.options,
            topic=self.topic,
            dead_letter_queue="",
            max_dequeue_count=MAX_DEQUEUE_COUNT,
            visibility_timeout=VISIBILITY_TIMEOUT,
        )

    def put(self, topic: str, body: bytes, headers: Sequence[Header] = ()) -> None:
        self.add(topic, *join(body, tuple(headers), body_field=b"body"))

    def add(self, topic: str, *fields: Header) -> str:
        """Add an entry as it is; redis-py's own xadd knows no repeated fields."""
        flat = [part for pair in fields for part in pair]
        return cast("bytes", self.raw("XADD", topic, "*", *flat)).decode()

    def raw(self, *command: str | bytes | int) -> Any:
        connection: Any = self.client.connection_pool.get_connection()
        try:
            connection.send_command(*command)
            return connection.read_response()
        finally:
            self.client.connection_pool.release(connection)

    def fields(self, topic: str) -> list[tuple[Header, ...]]:
        """Return the entries of a stream as they are."""
        entries = self.raw("XRANGE", topic, "-", "+")
        return [tuple(zip(flat[::2], flat[1::2], strict=True)) for _, flat in entries]

    def contents(self, topic: str) -> list[Message]:
        return [split(fields, body_field=b"body") for fields in self.fields(topic)]

    def receive(self, *, consumer_group: str, client_name: str) -> list[str]:
        self.make_group(consumer_group)
        reply = self.raw(
            *("XREADGROUP", "GROUP", consumer_group, client_name),
            *("STREAMS", self.topic, ">"),
        )
        return [bookmark.decode() for bookmark, _ in reply[0][1]]

    def make_group(self, name: str) -> None:
        groups = self.client.xinfo_groups(self.topic)
        if name.encode() not in [group["name"] for group in groups]:
            self.client.xgroup_create(self.topic, name, id="0")

    def receive_again(
        self, bookmark: str, *, consumer_group: str, client_name: str
    ) -> None:
        self.client.xclaim(self.topic, consumer_group, client_name, 0, [bookmark])

    def settle(self, bookmark: str, *, consumer_group: str) -> None:
        self.client.xack(self.topic, consumer_group, bookmark)

    def advance(self, seconds: float) -> None:
        """Let everything pending look as idle as if that time had passed."""
        for group in self.client.xinfo_groups(self.topic):
            name = group["name"].decode()
            for one in self.raw("XPENDING", self.topic, name, "-", "+", 100_000):
                bookmark, client_name, idle, count = one
                self.raw(
                    *("XCLAIM", self.topic, name, client_name, 0, bookmark),
                    *("IDLE", idle + int(seconds * 1000)),
                    *("RETRYCOUNT", count, "JUSTID"),
                )

    def go_away(self) -> None:
        self.server.kill()

    def come_back(self) -> None:
        self.server.start()
        self.client.connection_pool.disconnect()
