"""The kinds of brokers in the contract suite, and how to get a stage of each.

A new kind needs a line here: a server to test against (`tests/brokers`) and a stage on
it. The suite reads all other differences from the capabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.contracts.topic_fixture_interface import TopicFixture

MEMORY = "memory"


class BrokerServer(Protocol):
    """A real server on free loopback ports, with a folder of its own."""

    url: str

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def stop(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind: the class of its server and that of its stage, as `module:name`.

    `settings` are for the stage; `need` names what the machine must have, as in
    `tests.machine_requirements`. A server that `stands_in` for a cloud service is one
    process: it shows nothing of the service's many machines.
    """

    name: str
    server: str
    stage: str
    need: str = ""
    stands_in: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)

    def start(self, folder: Path) -> BrokerServer:
        broker_server: BrokerServer = _named(self.server)(folder)
        return broker_server

    def stage_on(self, server: BrokerServer) -> TopicFixture:
        stage: TopicFixture = _named(self.stage)(server, **self.settings)
        return stage

    def param(self) -> Any:
        marks = [pytest.mark.needs(self.need)] if self.need else []
        return pytest.param(self.name, marks=marks)


def _named(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    factory: Callable[..., Any] = getattr(import_module(module), name)
    return factory


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            name="redis_streams",
            server="tests.brokers.redis_server:RedisServer",
            stage="tests.contracts.redis_streams_topic_fixture:RedisStage",
        ),
        Kind(
            name="rabbitmq",
            server="tests.brokers.rabbitmq:RabbitMqServer",
            stage="tests.contracts.rabbitmq_topic_fixture:RabbitStage",
            need="rabbitmq",
        ),
        Kind(
            name="azure_queue",
            server="tests.brokers.azurite:AzuriteServer",
            stage="tests.contracts.azure_queue_topic_fixture:AzureStage",
            need="azurite",
            stands_in=True,
        ),
        Kind(
            name="sqs",
            server="tests.brokers.moto:MotoServer",
            stage="tests.contracts.sqs_topic_fixture:SqsStage",
            need="moto",
            stands_in=True,
            settings={"visibility_timeout": 2.0},
        ),
    )
}
REAL = [kind.param() for kind in KINDS.values()]
EVERY = [MEMORY, *REAL]
STREAMS = [MEMORY, KINDS["redis_streams"].param()]
