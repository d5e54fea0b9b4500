"""The consumers of `sdk/examples`, each a process on the real client and a real broker.

Poisonweb is the fake that users get for their own tests; the product's publishers send
what it requeues, with a mark that the fake made.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from redis import Redis

from apps.brokers.adapter_contract import Outbound, OutcomeKind
from poisonguard.contract import REDRIVE_HEADER, FailureReport
from poisonguard.testing import FakePoisonweb
from tests.contracts.azure_queue_topic_fixture import AzureStage
from tests.contracts.conftest import StageOf
from tests.contracts.rabbitmq_topic_fixture import RabbitStage
from tests.contracts.sdk_example_processes import (
    BAD,
    EXAMPLES,
    GOOD,
    LATER,
    ExampleConsumer,
    environ_of,
    environ_of_boto3,
)
from tests.contracts.sqs_topic_fixture import SqsStage
from tests.contracts.topic_fixture_interface import RealStage

LONGEST = 80  # lines of an example


@pytest.fixture
def example_of(
    poisonweb: FakePoisonweb, tmp_path: Path
) -> Callable[..., ExampleConsumer]:
    def make(topic: str, *command: str, **environ: str) -> ExampleConsumer:
        url = poisonweb.url.replace("//", f"//{poisonweb.key}@")
        common = environ_of(url, topic, tmp_path)
        return ExampleConsumer(list(command), {**common, **environ}, tmp_path / "log")

    return make


def refusing_once(poisonweb: FakePoisonweb) -> list[FailureReport]:
    """Reject the first report, so that its message is released; collect all."""
    reports: list[FailureReport] = []

    def is_first(report: FailureReport) -> bool:
        reports.append(report)
        return len(reports) == 1

    poisonweb.reject(is_first)
    return reports


def requeue(stage: RealStage, failure: FailureReport, mark: str, body: bytes) -> None:
    """Send a message again as Poisonweb does, with an edited body."""
    headers = (*failure.headers, (REDRIVE_HEADER.encode(), mark.encode()))
    message = Outbound(topic=failure.topic, body=body, headers=headers)
    (outcome,) = stage.publisher().publish([message])
    assert outcome.kind is OutcomeKind.SENT, outcome.detail


def text(order: dict[str, Any]) -> bytes:
    return json.dumps(order).encode()


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda f: f.name)
def test_an_example_is_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= LONGEST


@pytest.mark.needs("moto")
def test_the_consumer_of_sqs(
    stage_of: StageOf,
    poisonweb: FakePoisonweb,
    example_of: Callable[..., ExampleConsumer],
) -> None:
    stage = cast("SqsStage", stage_of("sqs"))
    reports = refusing_once(poisonweb)
    example = example_of(
        stage.topic,
        "sqs_consumer.py",
        stage.url_of(stage.topic),
        **environ_of_boto3(stage),
    )
    message_id = stage.send(stage.topic, text(BAD).decode())
    stage.send(stage.topic, text(GOOD).decode())
    with example.running():
        example.until(lambda: poisonweb.failures and example.charged(GOOD))
        (failure,) = poisonweb.failures
        mark = poisonweb.requeue()
        requeue(stage, failure, mark, text(LATER))
        example.until(lambda: poisonweb.confirmations)
        example.until(lambda: not stage.contents(stage.topic))

    assert failure.bookmark == message_id
    assert len(reports) > 1  # it was released, and came again
    assert [one.redrive for one in poisonweb.confirmations] == [mark]
    assert (example.charged(GOOD), example.charged(LATER)) == (1, 1)
    assert stage.contents(stage.queue) == []


@pytest.mark.needs("azurite")
def test_the_consumer_of_azure_queues(
    stage_of: StageOf,
    poisonweb: FakePoisonweb,
    example_of: Callable[..., ExampleConsumer],
) -> None:
    stage = cast("AzureStage", stage_of("azure_queue"))
    reports = refusing_once(poisonweb)
    example = example_of(
        stage.topic,
        "azure_queue_consumer.py",
        stage.topic,
        AZURE_STORAGE_CONNECTION_STRING=stage.server.url,
    )
    stage.put(stage.topic, text(BAD))
    stage.put(stage.topic, text(GOOD))
    with example.running():
        example.until(lambda: poisonweb.failures and example.charged(GOOD))
        (failure,) = poisonweb.failures
        requeue(stage, failure, poisonweb.requeue(), text(LATER))
        example.until(lambda: example.charged(LATER))
        example.until(lambda: not stage.contents(stage.topic))

    assert failure.body == text(BAD)
    assert len(reports) > 1  # it was released, and came again
    assert (example.charged(GOOD), example.charged(LATER)) == (1, 1)
    # This broker drops the mark: the guard does not learn of the requeue.
    assert poisonweb.confirmations == []


@pytest.mark.needs("rabbitmq")
def test_the_consumer_of_aio_pika(
    stage_of: StageOf,
    poisonweb: FakePoisonweb,
    example_of: Callable[..., ExampleConsumer],
) -> None:
    stage = cast("RabbitStage", stage_of("rabbitmq"))
    queue = f"orders-{uuid4().hex}"  # this client does not accept the stage's own name
    stage.declare(queue, "quorum")
    reports = refusing_once(poisonweb)
    example = example_of(
        queue, "aio_pika_consumer.py", queue, AMQP_URL=stage.server.url
    )
    name = (b"amqp.message_id", b"m-1")
    kind = (b"amqp.content_type", b"application/json")
    typed = (b"n", b'{"$I": 5}')
    stage.put(queue, text(BAD), (kind, name, typed))
    stage.put(queue, text(GOOD))
    with example.running():
        example.until(lambda: poisonweb.failures and example.charged(GOOD))
        (failure,) = poisonweb.failures
        mark = poisonweb.requeue()
        requeue(stage, failure, mark, text(LATER))
        example.until(lambda: poisonweb.confirmations)
        example.until(lambda: not stage.contents(queue))

    assert (failure.bookmark, failure.headers) == ("m-1", (kind, name, typed))
    assert len(reports) > 1  # it was released, and came again
    assert [one.redrive for one in poisonweb.confirmations] == [mark]
    assert (example.charged(GOOD), example.charged(LATER)) == (1, 1)
    assert reports[-1].dequeue_count == 2


@pytest.mark.needs("rabbitmq")
def test_the_task_of_celery_and_its_requeue_on_rabbitmq(
    stage_of: StageOf,
    poisonweb: FakePoisonweb,
    example_of: Callable[..., ExampleConsumer],
) -> None:
    stage = cast("RabbitStage", stage_of("rabbitmq"))
    queue = f"orders-{uuid4().hex}"
    reports = refusing_once(poisonweb)
    worker = ("worker", "-Q", queue, "-c", "2", "-l", "INFO", "--without-mingle")
    example = example_of(
        queue,
        "-m",
        "celery",
        "-A",
        "celery_tasks",
        *worker,
        BROKER_URL=stage.server.url,
    )
    with example.running():
        send(example, queue, BAD, GOOD)
        example.until(lambda: poisonweb.failures and example.charged(GOOD))
        (failure,) = poisonweb.failures
        mark = poisonweb.requeue()
        _, kwargs, embedded = json.loads(failure.body)
        mended = json.dumps([[LATER], kwargs, embedded]).encode()
        requeue(stage, failure, mark, mended)
        example.until(lambda: poisonweb.confirmations)
        example.until(lambda: not stage.contents(queue))

    assert json.loads(failure.body)[0] == [BAD]
    assert (
        failure.bookmark == failure.message_id == dict(failure.headers)[b"id"].decode()
    )
    assert len(reports) > 1  # it was released, and came again
    assert [one.redrive for one in poisonweb.confirmations] == [mark]
    assert (example.charged(GOOD), example.charged(LATER)) == (1, 1)


def send(example: ExampleConsumer, queue: str, *orders: dict[str, Any]) -> None:
    """Send tasks as an application with the same module does."""
    program = "import json, sys, celery_tasks\n" + (
        "for order in json.loads(sys.argv[2]):\n"
        "    celery_tasks.charge.apply_async([order], queue=sys.argv[1])"
    )
    subprocess.run(
        [sys.executable, "-c", program, queue, json.dumps(orders)],
        cwd=EXAMPLES,
        env=example.environ,
        check=True,
    )


def test_on_redis_a_message_of_celery_is_an_envelope(
    poisonweb: FakePoisonweb, example_of: Callable[..., ExampleConsumer]
) -> None:
    """Poisonweb sends no such envelope, so a requeue does not reach the task."""
    broker = os.environ["CELERY_BROKER_URL"].rpartition("/")[0] + "/14"
    queue = f"orders-{uuid4().hex}"
    worker = ("worker", "-Q", queue, "-c", "1", "-l", "INFO", "--without-mingle")
    example = example_of(
        queue, "-m", "celery", "-A", "celery_tasks", *worker, BROKER_URL=broker
    )
    send(example, queue, BAD)
    with Redis.from_url(broker) as client:
        envelope = json.loads(client.lrange(queue, 0, 0)[0])
    with example.running():
        example.until(lambda: poisonweb.failures)

    (failure,) = poisonweb.failures
    assert json.loads(failure.body)[0] == [BAD]
    assert json.loads(base64.b64decode(envelope["body"])) == json.loads(failure.body)
    assert envelope["headers"]["id"] == failure.bookmark
