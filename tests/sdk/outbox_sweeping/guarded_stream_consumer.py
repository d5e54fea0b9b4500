"""A consumer of a Redis stream whose effects are rows, forked to be killed anywhere.

Each effect is committed with the mark of its message. It reads in a consumer group,
first what it was handed and has not settled.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from typing import Any, TypedDict

import psycopg
from redis import Redis

from poisonguard import Guard
from poisonguard.dedupe.postgres import PostgresWindow, schema
from poisonguard.readers.redis_streams import Entry, RedisStreamsReader
from tests.sdk.fake_poisonweb_server import KEY

GROUP, CLIENT, TABLES = "billing", "billing-1", "consumer"
READER = RedisStreamsReader()
BATCH, IDLE_MILLISECONDS = 100, 20
EFFECT = "INSERT INTO effects (message_id) VALUES (%s)"


class StreamAndEffects(TypedDict):
    """Where a consumer finds its messages, and where its effects are."""

    topic: str
    redis_url: str
    dsn: str
    url: str


class Effects:
    """The consumer's own tables; without a unique index, two effects are two rows."""

    def __init__(self, dsn: str) -> None:
        self.connection: psycopg.Connection[Any] = connect(dsn)

    def make(self) -> None:
        self.connection.execute(f"CREATE SCHEMA {TABLES}")
        self.connection.execute(schema())
        self.connection.execute("CREATE TABLE effects (message_id text)")

    def drop(self) -> None:
        self.connection.execute(f"DROP SCHEMA {TABLES} CASCADE")
        self.connection.close()

    @property
    def counts(self) -> dict[str, int]:
        return dict(
            self.connection.execute(
                "SELECT message_id, count(*) FROM effects GROUP BY 1"
            ).fetchall()
        )


def connect(dsn: str) -> psycopg.Connection[Any]:
    return psycopg.connect(dsn, autocommit=True, options=f"-csearch_path={TABLES}")


def main(text: str) -> None:
    """Handle messages of a stream until killed, or until SIGTERM asks to stop."""
    place: StreamAndEffects = json.loads(text)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    connection = connect(place["dsn"])
    window = PostgresWindow(connection.transaction)

    def handle(entry: Entry) -> None:
        window.connection.execute(EFFECT, [READER.message_id(entry)])

    guard = Guard(
        topic=place["topic"],
        consumer_group=GROUP,
        client_name=CLIENT,
        url=place["url"],
        api_key=KEY,
        start_timeout=60,
        reader=READER,
        journal=None,  # who kills it is the test
        dedupe=window,
    )
    with guard, Redis.from_url(place["redis_url"], protocol=2) as redis:
        for entries in read(redis, place["topic"], stop):
            for entry in entries:
                assert guard.handle(entry, handle).settles
                redis.xack(place["topic"], GROUP, entry[0])


def read(redis: Any, topic: str, stop: threading.Event) -> Iterator[list[Entry]]:
    start: str | bytes = "0"
    while not stop.is_set():
        reply = redis.xreadgroup(
            GROUP, CLIENT, {topic: start}, count=BATCH, block=IDLE_MILLISECONDS
        )
        entries = reply[0][1] if reply else []
        if start != ">" and not entries:
            start = ">"
        yield entries
