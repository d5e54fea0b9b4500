"""What the contract suite needs of a broker besides its ports: the rest of the world.

A stage is one topic of one broker: its other producers and consumers, and the power to
take the broker away. Those of RabbitMQ, Azure and SQS are in modules of their own.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast
from uuid import uuid4

import redis

from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.adapters.memory import CAPABILITIES, MemoryBroker
from apps.brokers.adapters.redis_entries import join, split
from apps.brokers.adapters.redis_streams import ADAPTER
from apps.brokers.ports import (
    BrokerAdmin,
    Capabilities,
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
    @property
    def topic(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...

    def publisher(self) -> Publisher: ...
    def reader(self) -> DeadLetterReader: ...
    def admin(self) -> TopicAdmin: ...
    def broker_admin(self) -> BrokerAdmin: ...

    def put(self, topic: str, body: bytes, headers: Sequence[Header] = ()) -> None:
        """Add a message as any producer would."""

    def contents(self, topic: str) -> list[Message]:
        """Return what is in a topic or a queue, oldest first, and leave it there."""

    def consume(self, topic: str) -> list[Message]:
        """Take everything and settle it, as any consumer would."""

    def go_away(self) -> None: ...
    def come_back(self) -> None: ...


class RealStage(Stage, Protocol):
    """A stage on a real server, which the whole product can be led to."""

    @property
    def broker(self) -> BrokerSettings: ...
    @property
    def settings(self) -> TopicSettings: ...


class StreamStage(Stage, Protocol):
    """A topic that consumer groups read, each for itself, and a clock."""

    def receive(self, *, consumer_group: str, client_name: str) -> list[str]:
        """Hand everything new to a consumer and return the bookmarks."""

    def receive_again(
        self, bookmark: str, *, consumer_group: str, client_name: str
    ) -> None:
        """Hand out once more what is pending."""

    def settle(self, bookmark: str, *, consumer_group: str) -> None: ...
    def advance(self, seconds: float) -> None: ...


class MemoryStage:
    topic = "orders"
    queue = "orders-poison"
    capabilities = CAPABILITIES

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

    def broker_admin(self) -> BrokerAdmin:
        return self.broker

    def put(self, topic: str, body: bytes, headers: Sequence[Header] = ()) -> None:
        message = Outbound(topic=topic, body=body, headers=tuple(headers))
        self.broker.publisher().publish([message])

    def contents(self, topic: str) -> list[Message]:
        return [(m.body, m.headers) for m in self.broker.published(topic)]

    def consume(self, topic: str) -> list[Message]:
        received = self.broker.receive(
            topic, consumer_group="world", client_name="world"
        )
        for bookmark, _ in received:
            self.broker.settle(topic, bookmark, consumer_group="world")
        return [(message.body, message.headers) for _, message in received]

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

    def stop(self) -> None:
        self.kill()

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

    capabilities = ADAPTER.capabilities

    def __init__(self, server: Server) -> None:
        if server.process.poll() is not None:
            server.start()
        self.server = server
        self.url = server.url
        self.topic = f"orders {uuid4()}"
        self.queue = f"{self.topic}-poison"
        self.options: dict[str, object] = {}
        self.client = redis.Redis.from_url(self.url, protocol=2)

    @property
    def broker(self) -> BrokerSettings:
        return BrokerSettings(url=self.url, options=self.options)

    @property
    def settings(self) -> TopicSettings:
        return TopicSettings(
            topic=self.topic,
            max_dequeue_count=MAX_DEQUEUE_COUNT,
            visibility_timeout=VISIBILITY_TIMEOUT,
        )

    def publisher(self) -> Publisher:
        return ADAPTER.publisher(self.broker)

    def reader(self) -> DeadLetterReader:
        return ADAPTER.dead_letter_reader(self.broker, self.settings)

    def admin(self) -> TopicAdmin:
        return ADAPTER.topic_admin(self.broker, self.settings)

    def broker_admin(self) -> BrokerAdmin:
        return ADAPTER.broker_admin(self.broker)

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

    def consume(self, topic: str) -> list[Message]:
        entries = self._hand_out(topic, consumer_group="world", client_name="world")
        for bookmark, _ in entries:
            self.client.xack(topic, "world", bookmark)
        paired = (zip(flat[::2], flat[1::2], strict=True) for _, flat in entries)
        return [split(tuple(fields), body_field=b"body") for fields in paired]

    def receive(self, *, consumer_group: str, client_name: str) -> list[str]:
        entries = self._hand_out(
            self.topic, consumer_group=consumer_group, client_name=client_name
        )
        return [bookmark.decode() for bookmark, _ in entries]

    def _hand_out(self, topic: str, *, consumer_group: str, client_name: str) -> Any:
        groups = self.client.xinfo_groups(topic) if self.client.exists(topic) else []
        if consumer_group.encode() not in [group["name"] for group in groups]:
            self.client.xgroup_create(topic, consumer_group, id="0", mkstream=True)
        reply = self.raw(
            *("XREADGROUP", "GROUP", consumer_group, client_name),
            *("STREAMS", topic, ">"),
        )
        return reply[0][1] if reply else []

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
