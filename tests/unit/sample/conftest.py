"""A Redis for the sample alone, whose streams have the names that they have.

Beside it a double of Poisonweb: it keeps what it is told, and what came besides.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from redis import Redis

from poisonweb.embedded import redis as embedded
from poisonweb.sample.consumer import MessageHandler, SampleConsumer
from poisonweb.sample.consumers_and_their_topics import BILLING, SampleSubscription
from poisonweb.sample.event_ledger import Ledger
from poisonweb.sample.guards import Guards
from tests.sdk.fake_poisonweb_server import KEY, FakeServer, running
from tests.unit.sample.settled_redis_topic_helper import is_settled
from tests.waiting import wait_until


class Consume(Protocol):
    def __call__(
        self, handler: MessageHandler, subscription: SampleSubscription = ..., /
    ) -> None:
        """Run a consumer until it has settled all there is."""


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with embedded.temporary(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url, protocol=2) as client:
        client.flushall()
        yield client


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "sample-ledger.jsonl")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with running() as server:
        yield server


@pytest.fixture
def port(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Give the port of a Poisonweb that takes the key in `tmp_path`."""
    (tmp_path / "sample-api-key").write_text(KEY)
    monkeypatch.setenv("POISONGUARD_JOURNAL", str(tmp_path / "sample-journal"))
    return int(server.url.rpartition(":")[2])


@pytest.fixture
def guards(port: int, tmp_path: Path) -> Guards:
    return Guards(port=port, var=tmp_path)


@pytest.fixture
def consume(redis: Redis, ledger: Ledger, guards: Guards) -> Consume:
    def run(
        handler: MessageHandler, subscription: SampleSubscription = BILLING, /
    ) -> None:
        stop = threading.Event()
        wishes: dict[str, Any] = {"guards": guards, "ledger": ledger, "stop": stop}
        consumer = SampleConsumer(redis, subscription, handler, **wishes)
        thread = threading.Thread(target=consumer.run)
        thread.start()
        try:
            wait_until(lambda: is_settled(redis, subscription.topic))
        finally:
            stop.set()
            thread.join()

    return run
