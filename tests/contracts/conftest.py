"""A server for each kind of broker, once for the whole run, and stages on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from poisonguard.testing import FakePoisonweb
from tests.brokers.redis_server import RedisServer
from tests.contracts import broker_kinds
from tests.contracts.broker_kinds import BrokerServer
from tests.contracts.in_memory_topic_fixture import MemoryStage
from tests.contracts.postgres_and_zookeeper_lock_fixtures import lock_database
from tests.contracts.redis_streams_topic_fixture import RedisStage
from tests.contracts.topic_fixture_interface import RealStage, StreamStage, TopicFixture

StageOf = Callable[[str], TopicFixture]


@pytest.fixture(scope="session")
def servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], BrokerServer]]:
    """Start the server of a kind at its first use, and stop it at the end."""
    running: dict[str, BrokerServer] = {}

    def server_of(kind: str) -> BrokerServer:
        if kind not in running:
            running[kind] = broker_kinds.KINDS[kind].start(
                tmp_path_factory.mktemp(kind)
            )
        return running[kind]

    yield server_of
    for server in running.values():
        server.stop()


@pytest.fixture
def stage_of(servers: Callable[[str], BrokerServer]) -> Iterator[StageOf]:
    """Make brokers' stages; close their ports and remove them at the end of a test."""
    with ExitStack() as ports:

        def make(kind: str) -> TopicFixture:
            if kind == broker_kinds.MEMORY:
                return MemoryStage()
            stage = broker_kinds.KINDS[kind].stage_on(servers(kind))
            ports.callback(stage.remove)
            _close_later(stage, ports)
            return stage

        yield make


def _close_later(stage: TopicFixture, ports: ExitStack) -> None:
    def remembering(make: Callable[[], Any]) -> Callable[[], Any]:
        def make_and_remember() -> Any:
            port = make()
            ports.callback(port.close)
            return port

        return make_and_remember

    for name in ("publisher", "reader", "admin", "broker_admin"):
        setattr(stage, name, remembering(getattr(stage, name)))


@pytest.fixture(params=broker_kinds.EVERY)
def stage(request: pytest.FixtureRequest, stage_of: StageOf) -> TopicFixture:
    """Yield a stage of each broker kind in turn, also of the broker in memory."""
    return stage_of(request.param)


@pytest.fixture(params=broker_kinds.REAL)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def real_stage(kind: str, stage_of: StageOf) -> RealStage:
    return cast("RealStage", stage_of(kind))


@pytest.fixture(params=broker_kinds.STREAMS)
def streams(request: pytest.FixtureRequest, stage_of: StageOf) -> StreamStage:
    return cast("StreamStage", stage_of(request.param))


@pytest.fixture
def redis_stage(stage_of: StageOf) -> RedisStage:
    return cast("RedisStage", stage_of("redis_streams"))


@pytest.fixture
def mortal_stage(tmp_path: Path) -> Iterator[RedisStage]:
    """Give one test an empty Redis of its own."""
    stage = RedisStage(RedisServer(tmp_path))
    yield stage
    stage.client.close()
    stage.server.kill()


@pytest.fixture
def poisonweb() -> Iterator[FakePoisonweb]:
    with FakePoisonweb() as poisonweb:
        yield poisonweb


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    """Give a module's tests a database with the tables of the locks."""
    with lock_database() as dsn:
        yield dsn
