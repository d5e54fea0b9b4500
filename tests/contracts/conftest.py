"""A Redis for the contract suite alone: it is killed and started again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.stages import MemoryStage, RedisStage, Server, Stage


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def redis_stage(server: Server) -> Iterator[RedisStage]:
    if server.process.poll() is not None:
        server.start()
    stage = RedisStage(server)
    yield stage
    stage.client.close()


@pytest.fixture
def mortal_stage(tmp_path: Path) -> Iterator[RedisStage]:
    """Give a Redis to one test, which remembers nothing of the others."""
    stage = RedisStage(Server(tmp_path))
    yield stage
    stage.client.close()
    stage.server.kill()


@pytest.fixture(params=["memory", "redis_streams"])
def stage(request: pytest.FixtureRequest) -> Stage:
    if request.param == "memory":
        return MemoryStage()
    found: RedisStage = request.getfixturevalue("redis_stage")
    return found
