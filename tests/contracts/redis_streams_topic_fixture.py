"""A stream and its dead-letter queue on a Redis, each for one test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from uuid import uuid4

import redis

from apps.brokers.adapter_contract import Header
from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.adapters.redis_streams.adapter import ADAPTER
from apps.brokers.adapters.redis_streams.entries import join_body, split_body
from tests.brokers.redis_server import RedisServer
from tests.contracts.topic_fixture_interface import (
    MAX_DEQUEUE_COUNT,
    VISIBILITY_TIMEOUT,
    Message,
    StagePorts,
)


class RedisStage(StagePorts):
    """A stream of its own on a shared server; other programs use redis-py."""

    adapter = ADAPTER

    def __init__(self, server: RedisServer) -> None:
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

    def put(self, topic: str, body: bytes, headers: Sequence[Header] = ()) -> None:
        self.add(topic, *join_body(body, tuple(headers), body_field=b"body"))

    def put_later(self, topic: str, body: bytes, *, seconds: int) -> None:
        """Put the message without a delay: XADD has none."""
        self.put(topic, body)

    def add(self, topic: str, *fields: Header) -> str:
        """Add an entry to a stream as it is; redis-py allows no repeated fields."""
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
        return [split_body(fields, body_field=b"body") for fields in self.fields(topic)]

    def consume(self, topic: str) -> list[Message]:
        entries = self._hand_out(topic, consumer_group="world", client_name="world")
        for bookmark, _ in entries:
            self.client.xack(topic, "world", bookmark)
        paired = (zip(flat[::2], flat[1::2], strict=True) for _, flat in entries)
        return [split_body(tuple(fields), body_field=b"body") for fields in paired]

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
        """Make all pending entries look as idle as if that time had passed."""
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
