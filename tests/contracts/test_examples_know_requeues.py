"""Requeues of the product on real brokers to consumers of `sdk/examples`.

The web server and the consumer are processes; the requeue is an operation.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest

from apps.core import clock
from apps.poison.models import Poison
from apps.team.rights import Principal
from tests import failure_report_builders
from tests.acceptance.web_server_process import Web, api_key
from tests.contracts.conftest import StageOf
from tests.contracts.rabbitmq_topic_fixture import RabbitStage
from tests.contracts.sdk_example_processes import (
    BAD,
    GOOD,
    ExampleConsumer,
    environ_of,
    environ_of_boto3,
)
from tests.contracts.sqs_topic_fixture import SqsStage
from tests.contracts.test_message_lifecycle import carry_out, decide, registered
from tests.contracts.topic_fixture_interface import RealStage
from tests.failure_report_builders import failure

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def web(django_db_setup: None) -> Iterator[Web]:
    web = Web()
    web.start()
    yield web
    web.stop(signal.SIGTERM)


@pytest.fixture
def consumer_of(web: Web, tmp_path: Path) -> Callable[..., ExampleConsumer]:
    def make(*command: str, **environ: str) -> ExampleConsumer:
        url = web.url.replace("//", f"//{api_key()}@")
        common = environ_of(url, "orders", tmp_path)
        return ExampleConsumer(list(command), {**common, **environ}, tmp_path / "log")

    return make


@pytest.mark.needs("moto")
def test_what_is_requeued_on_sqs_is_known_again(
    stage_of: StageOf, consumer_of: Callable[..., ExampleConsumer], operator: Principal
) -> None:
    stage = cast("SqsStage", stage_of("sqs"))
    command = ("sqs_consumer.py", stage.url_of(stage.topic))

    requeued_is_known(
        stage, "sqs", consumer_of(*command, **environ_of_boto3(stage)), operator
    )


@pytest.mark.needs("rabbitmq")
def test_what_is_requeued_on_rabbitmq_is_known_again(
    stage_of: StageOf, consumer_of: Callable[..., ExampleConsumer], operator: Principal
) -> None:
    stage = cast("RabbitStage", stage_of("rabbitmq"))
    stage.topic = f"orders-{uuid4().hex}"  # the client does not accept every name
    stage.declare(stage.topic, "classic")
    command = ("aio_pika_consumer.py", stage.topic)

    requeued_is_known(
        stage, "rabbitmq", consumer_of(*command, AMQP_URL=stage.server.url), operator
    )


def requeued_is_known(
    stage: RealStage, kind: str, consumer: ExampleConsumer, operator: Principal
) -> None:
    """Requeue one message that is handled now, and one that fails as before."""
    registered(stage, kind, clock.now())
    mended = failure(clock.now(), body=json.dumps(GOOD).encode())
    failure_report_builders.capture(clock.now(), mended)
    stage.put(stage.topic, json.dumps(BAD).encode())
    with consumer.running():
        consumer.until(lambda: Poison.objects.count() == 2)
        carry_out(decide(operator))
        consumer.until(lambda: Poison.objects.filter(state="confirmed").exists())
        consumer.until(lambda: Poison.objects.filter(recurrences=1).exists())
        consumer.until(lambda: not stage.contents(stage.topic))

    confirmed, again = Poison.objects.order_by("pk")
    assert (confirmed.state, confirmed.redrives) == ("confirmed", 1)
    assert (again.state, again.redrives, again.failures) == ("open", 1, 2)
    assert consumer.charged(GOOD) == 1
