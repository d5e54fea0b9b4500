"""A row of an outbox that is sent twice is handled once, on every broker that can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import redis

from apps.brokers.models import Broker
from apps.outbox.sweeping.broker_publishing import BrokerPublishing
from poisonguard import Guard, Outcome
from poisonguard.dedupe import MemoryWindow
from poisonguard.outbox.message import Header, OutboxMessage
from poisonguard.outbox.outcome import SendKind
from poisonguard.outbox.publishers.pika import PikaPublisher
from poisonguard.outbox.publishers.redis_streams import RedisStreamsPublisher
from poisonguard.readers import Reader
from poisonguard.readers.azure_queue import AzureQueueReader
from poisonguard.readers.pika import PikaReader
from poisonguard.readers.redis_streams import RedisStreamsReader
from poisonguard.readers.sqs import ATTRIBUTES, SqsReader
from poisonguard.testing import FakePoisonweb
from tests.contracts.azure_queue_topic_fixture import AzureStage
from tests.contracts.broker_kinds import KINDS
from tests.contracts.conftest import StageOf
from tests.contracts.rabbitmq_topic_fixture import RabbitStage
from tests.contracts.redis_streams_topic_fixture import RedisStage
from tests.contracts.sqs_topic_fixture import SqsStage
from tests.contracts.topic_fixture_interface import RealStage

HANDLED, SKIPPED = Outcome.HANDLED, Outcome.SKIPPED


def of_server(stage: RealStage, kind: str) -> BrokerPublishing:
    broker = Broker(pk=41, name=kind, kind=kind, url=stage.broker.url)
    broker.options = dict(stage.broker.options)
    return BrokerPublishing(broker)


def of_sdk(stage: RealStage, kind: str) -> Any:
    if kind == "rabbitmq":
        return PikaPublisher(f"{stage.broker.url}%2F")
    return RedisStreamsPublisher(stage.broker.url)


def from_redis(stage: RedisStage, *, protocol: int, decodes: bool) -> list[Any]:
    with redis.Redis.from_url(
        stage.url, protocol=protocol, decode_responses=decodes
    ) as client:
        client.xgroup_create(stage.topic, "billing", id="0", mkstream=True)
        reply: Any = client.xreadgroup("billing", "b-1", {stage.topic: ">"})
    if protocol == 2:
        ((_, entries),) = reply
        return list(entries)
    return [entry for part in reply[stage.topic.encode()] for entry in part]


def from_rabbitmq(stage: RabbitStage) -> list[Any]:
    deliveries = []
    with stage.channel() as channel:
        while (delivery := channel.basic_get(stage.topic, auto_ack=True))[0]:
            deliveries.append(delivery)
    return deliveries


def from_sqs(stage: SqsStage) -> list[Any]:
    messages: list[Any] = []
    while reply := stage.client.receive_message(
        QueueUrl=stage.url_of(stage.topic), MaxNumberOfMessages=10, **ATTRIBUTES
    ).get("Messages"):
        messages += reply
    return messages


Receive = Callable[[Any], list[Any]]
CLIENTS: dict[str, tuple[str, Reader, Receive]] = {
    "redis-py": (
        "redis_streams",
        RedisStreamsReader(),
        lambda stage: from_redis(stage, protocol=2, decodes=False),
    ),
    "redis-py, RESP3": (
        "redis_streams",
        RedisStreamsReader(),
        lambda stage: from_redis(stage, protocol=3, decodes=False),
    ),
    "redis-py, decoding": (
        "redis_streams",
        RedisStreamsReader(),
        lambda stage: from_redis(stage, protocol=2, decodes=True),
    ),
    "pika": ("rabbitmq", PikaReader(), from_rabbitmq),
    "boto3": ("sqs", SqsReader(), from_sqs),
}


def cases() -> list[Any]:
    """Every client with each publisher of its broker."""
    listed = []
    for client, (kind, *_) in CLIENTS.items():
        marks = KINDS[kind].param().marks
        publishers = {"server": of_server, "SDK": of_sdk}
        if kind == "sqs":  # the SDK has no publisher for it
            del publishers["SDK"]
        listed += [
            pytest.param(client, publisher, marks=marks, id=f"{client}, {name}")
            for name, publisher in publishers.items()
        ]
    return listed


def send_twice(
    publish: Any, topic: str, headers: tuple[Header, ...] = ((b"name", b"v"),)
) -> None:
    """Send two rows twice, as after marks that were lost; their bodies are equal."""
    row = OutboxMessage(
        producer="shop",
        message_id="m-41",
        topic=topic,
        body=b"one",
        headers=headers,
    )
    for _ in range(2):
        outcomes = publish([row, replace(row, message_id="m-42")])
        assert [outcome.kind for outcome in outcomes] == [SendKind.SENT] * 2, outcomes
    publish.close()


def handle_all(
    poisonweb: FakePoisonweb, reader: Reader, messages: list[Any]
) -> tuple[Counter[Outcome], list[str | None]]:
    handled: list[str | None] = []
    with Guard(
        topic="orders",
        consumer_group="billing",
        url=poisonweb.url,
        api_key=poisonweb.key,
        reader=reader,
        journal=None,
        dedupe=MemoryWindow(),
    ) as guard:
        outcomes = Counter(
            guard.handle(message, lambda m: handled.append(reader.message_id(m)))
            for message in messages
        )
    return outcomes, handled


@pytest.mark.parametrize(("client", "publisher"), cases())
def test_a_row_that_is_sent_twice_is_handled_once(
    stage_of: StageOf,
    poisonweb: FakePoisonweb,
    client: str,
    publisher: Callable[[RealStage, str], Any],
) -> None:
    kind, reader, receive = CLIENTS[client]
    stage = cast("RealStage", stage_of(kind))
    send_twice(publisher(stage, kind), stage.topic)

    messages = receive(stage)
    outcomes, handled = handle_all(poisonweb, reader, messages)

    assert len(messages) == 4
    assert outcomes == {HANDLED: 2, SKIPPED: 2}
    assert sorted(map(str, handled)) == ["m-41", "m-42"]


@pytest.mark.parametrize("publisher", [of_server, of_sdk])
@pytest.mark.parametrize("kind", [KINDS["rabbitmq"].param()])
def test_properties_and_headers_of_rabbitmq_arrive_beside_the_id(
    stage_of: StageOf, kind: str, publisher: Callable[[RealStage, str], Any]
) -> None:
    stage = cast("RabbitStage", stage_of(kind))
    headers = (
        (b"name", b"v"),
        (b"amqp.app_id", b"shop"),
        (b"amqp.content_type", b"text/x"),
    )
    send_twice(publisher(stage, kind), stage.topic, headers)

    for _, properties, body in from_rabbitmq(stage):
        assert properties.message_id in {"m-41", "m-42"}
        assert (properties.app_id, properties.content_type) == ("shop", "text/x")
        assert (properties.headers, body) == ({"name": "v"}, b"one")


@pytest.mark.parametrize("kind", [KINDS["azure_queue"].param()])
def test_azure_takes_rows_and_carries_no_id(
    stage_of: StageOf, poisonweb: FakePoisonweb, kind: str
) -> None:
    stage = cast("AzureStage", stage_of(kind))
    send_twice(of_server(stage, kind), stage.topic, headers=())
    messages = list(stage.client(stage.topic).receive_messages(messages_per_page=32))

    outcomes, handled = handle_all(poisonweb, AzureQueueReader(), messages)

    assert outcomes == {HANDLED: 4}
    assert handled == [None] * 4


@pytest.mark.parametrize("kind", [KINDS["sqs"].param()])
def test_a_fifo_queue_drops_the_copy_itself(
    servers: Callable[[str], Any], kind: str, request: pytest.FixtureRequest
) -> None:
    stage = SqsStage(servers(kind), fifo=True)
    request.addfinalizer(stage.remove)
    send_twice(of_server(stage, kind), stage.topic)

    assert [SqsReader().message_id(message) for message in from_sqs(stage)] == [
        "m-41",
        "m-42",
    ]
