"""The examples keep their message while Poisonweb is away.

Its visibility would end several times meanwhile, had the consumer not renewed it.
"""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest
from azure.storage.queue import QueueClient

from poisonguard.testing import FakePoisonweb
from tests.contracts.azure_queue_topic_fixture import AzureStage
from tests.contracts.conftest import StageOf
from tests.contracts.sdk_example_processes import (
    BAD,
    EXAMPLES,
    environ_of,
    environ_of_boto3,
)
from tests.contracts.sqs_topic_fixture import SqsStage

HIDDEN = 6  # seconds; it is renewed every second
RENEWALS = 10
PATIENCE = 120.0


@pytest.fixture
def environ(
    poisonweb: FakePoisonweb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    def put(topic: str, **more: str) -> None:
        variables = environ_of(poisonweb.url, topic, tmp_path) | {
            "POISONGUARD_API_KEY": poisonweb.key,
            "POISONGUARD_HOLD_FOR": str(PATIENCE),
        }
        for name, value in {**variables, **more}.items():
            monkeypatch.setenv(name, value)

    return put


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HIDDEN", HIDDEN)
    return module


@contextmanager
def consuming(consume: Callable[[threading.Event], None]) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=consume, args=[stop])
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.mark.needs("moto")
def test_a_message_of_sqs_stays_hidden_while_poisonweb_is_away(
    stage_of: StageOf,
    poisonweb: FakePoisonweb,
    environ: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = cast("SqsStage", stage_of("sqs"))
    environ(stage.topic, **environ_of_boto3(stage))
    module, url = example("sqs_consumer", monkeypatch), stage.url_of(stage.topic)
    calls = stage.server.gate.calls
    before = calls["ChangeMessageVisibility"]
    with consuming(lambda stop: module.consume(url, stop)):
        poisonweb.wait_for(lambda: poisonweb.listening, PATIENCE)
        with poisonweb.away():
            stage.send(stage.topic, json.dumps(BAD))
            poisonweb.wait_for(
                lambda: calls["ChangeMessageVisibility"] >= before + RENEWALS, PATIENCE
            )
            (message,) = stage.server.look(stage.topic)
        poisonweb.wait_for(lambda: not stage.contents(stage.topic), PATIENCE)

    assert message.receives == 1
    (failure,) = poisonweb.failures
    assert failure.dequeue_count == 1


@pytest.mark.needs("azurite")
def test_a_message_of_azure_stays_hidden_while_poisonweb_is_away(
    stage_of: StageOf,
    poisonweb: FakePoisonweb,
    environ: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = cast("AzureStage", stage_of("azure_queue"))
    environ(stage.topic)
    module = example("azure_queue_consumer", monkeypatch)
    hidden_until: set[str] = set()

    def has_been_renewed() -> bool:
        hidden_until.update(one.visible_at for one in stage.server.look(stage.topic))
        return len(hidden_until) > RENEWALS

    queue = QueueClient.from_connection_string(stage.server.url, stage.topic)
    with queue, consuming(lambda stop: module.consume(queue, stop)):
        poisonweb.wait_for(lambda: poisonweb.listening, PATIENCE)
        with poisonweb.away():
            stage.put(stage.topic, json.dumps(BAD).encode())
            poisonweb.wait_for(has_been_renewed, PATIENCE)
            (one,) = stage.server.look(stage.topic)
        poisonweb.wait_for(lambda: not stage.contents(stage.topic), PATIENCE)

    assert one.dequeue_count == 1
    (failure,) = poisonweb.failures
    assert (failure.body, failure.dequeue_count) == (json.dumps(BAD).encode(), 1)
