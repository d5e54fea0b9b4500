"""What a guard reports of a message, and what a lane captures of it, are the same.

So the one goes back to the broker as the other does.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import aio_pika
import pika
import pytest
from aiormq.abc import DeliveredMessage
from azure.storage.queue import QueueMessage
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from apps.brokers.adapter_contract import Outbound
from apps.brokers.adapters.azure_queue import message_text
from apps.brokers.adapters.azure_queue.message_text import Encoding
from apps.brokers.adapters.rabbitmq import amqp_properties
from apps.brokers.adapters.rabbitmq import amqp_table as tables
from apps.brokers.adapters.sqs.messages import content_of, entry_of
from poisonguard.errors import Misconfigured
from poisonguard.readers import Reader, amqp, number_of
from poisonguard.readers.aio_pika import AioPikaReader
from poisonguard.readers.azure_queue import AzureQueueReader
from poisonguard.readers.celery import CeleryReader, TaskMessage
from poisonguard.readers.pika import PikaReader
from poisonguard.readers.sqs import SqsReader

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
REDRIVE = "123e4567-e89b-12d3-a456-426614174000.0a1b"
MARK = "x-poisonweb-redrive"
MARKED = Outbound(
    topic="orders", body=b"x", headers=((MARK.encode(), REDRIVE.encode()),)
)

# AMQP

VALUES: list[Any] = [
    *(None, True, 0, -5, 2**31, -(2**63), NOON, Decimal("-12.50")),
    *("", "ä", "[1, 2]", "[]", "{}", '{"$I": 5}', '{"$S": "[1]"}', "[1,2]"),
    *('{"a": 1.5}', "{", "[" * 5_000),
    *([], {}, [None, None], [1, "a", {"x": NOON, "y": [True, 2**40]}], {"a": {}}),
]


def as_sent(**properties: Any) -> bytes:
    """Give the properties as pika puts them on the wire."""
    return b"".join(pika.BasicProperties(**properties).encode())


def as_received(wire: bytes) -> pika.BasicProperties:
    return pika.BasicProperties().decode(wire)


def read(properties: Any) -> tuple[tuple[bytes, bytes], ...]:
    return PikaReader().headers((SimpleNamespace(delivery_tag=1), properties, b""))


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
def test_headers_of_amqp_go_back_with_their_types(value: Any) -> None:
    headers = {"first": "x", "value": value}
    received = as_received(as_sent(content_type="text/plain", headers=headers))

    again = as_received(amqp_properties.encode(read(received)))

    assert again.headers == received.headers
    assert again.content_type == "text/plain"


def test_a_message_of_amqp_reads_as_a_lane_reads_it() -> None:
    headers = {
        "n": 5,
        "long": 2**40,
        "text": "ä",
        "none": None,
        "flag": True,
        "list": [2**40, "a", {"x": NOON}],
        "empty": [],
        "x-poisonweb-redrive": REDRIVE,
    }
    wire = as_sent(
        content_type="text/plain",
        priority=0,
        message_id="m-1",
        timestamp=int(NOON.timestamp()),
        headers=headers,
    )

    assert read(as_received(wire)) == amqp_properties.decode(wire)


def test_an_own_header_is_not_taken_for_a_property() -> None:
    received = as_received(
        as_sent(message_id="m-1", headers={"amqp.type": "mine", "other": "x"})
    )

    again = as_received(amqp_properties.encode(read(received)))

    assert (again.type, again.headers) == (None, {"other": "x", "amqp.type": "mine"})


def test_a_number_that_pika_does_not_write_goes_back_as_well() -> None:
    ((_, value),) = amqp.pairs({}, {"rate": 1.5})

    assert tables.decode(tables.encode((b"rate", value))) == [(b"rate", value)]
    assert tables.encode((b"rate", value))[5:6] == b"d"


def test_a_header_without_an_amqp_type_is_written_as_bytes() -> None:
    deep: list[Any] = []
    for _ in range(40):
        deep = [deep]

    headers = dict(amqp.pairs({}, {"far": 2**70, "odd": {1, 2}, "deep": deep}))

    assert (headers[b"far"], headers[b"odd"]) == (b"%d" % 2**70, b'"{1, 2}"')
    assert headers[b"deep"].startswith(b"[[[[")


def incoming(body: bytes = b"body", **properties: Any) -> aio_pika.IncomingMessage:
    message_properties = aio_pika.Message(body, **properties).properties
    delivery = DeliveredMessage(
        delivery=deliver(),
        header=ContentHeader(properties=message_properties),
        body=body,
        channel=SimpleNamespace(is_closed=False),  # type: ignore[arg-type]
    )
    return aio_pika.IncomingMessage(delivery)


def pika_delivery(**properties: Any) -> tuple[Any, Any, bytes]:
    return deliver(), pika.BasicProperties(**properties), b"body"


def deliver() -> Basic.Deliver:
    return Basic.Deliver(consumer_tag="ctag1.a", delivery_tag=7, routing_key="orders")


def test_reads_an_aio_pika_message() -> None:
    reader = AioPikaReader()
    message = incoming(
        message_id="m-1",
        content_type="text/plain",
        timestamp=NOON,
        expiration=1.5,
        headers={"x-delivery-count": 2, "n": 5, "x-poisonweb-redrive": REDRIVE},
    )

    assert reader.glance(message)[::2] == ("m-1", True)
    assert (reader.message_id(message), reader.body(message)) == ("m-1", b"body")
    assert reader.headers(message) == (
        (b"amqp.content_type", b"text/plain"),
        (b"amqp.expiration", b"1500"),
        (b"amqp.message_id", b"m-1"),
        (b"amqp.timestamp", b"%d" % NOON.timestamp()),
        (b"n", b'{"$I": 5}'),
        (b"x-poisonweb-redrive", REDRIVE.encode()),
    )
    assert (reader.redrive(message), reader.dequeue_count(message)) == (REDRIVE, 3)
    assert (reader.enqueued_at(message), reader.content_type(message)) == (
        NOON,
        "text/plain",
    )
    assert reader.has_identity(message)


def test_an_aio_pika_message_without_an_id_is_known_by_its_place_and_body() -> None:
    reader, message = AioPikaReader(), incoming()

    assert reader.bookmark(message) == "ctag1.a/7/230d8358dc8e8890"
    assert (reader.message_id(message), reader.redrive(message)) == (None, None)
    assert not reader.has_identity(message)
    assert reader.number(message) == PikaReader().number(
        (deliver(), pika.BasicProperties(), b"body")
    )


# SQS


def received(message: Outbound, **system: str) -> dict[str, Any]:
    """Give what boto3 gives of a message that Poisonweb sends."""
    wire = entry_of(message).to_wire(0)
    return {
        "MessageId": "m-1",
        "ReceiptHandle": "r-1",
        "Body": wire["MessageBody"],
        "MessageAttributes": wire.get("MessageAttributes", {}),
        "Attributes": {"SentTimestamp": "1700000000000", **system},
    }


@pytest.mark.parametrize("body", [b"text", b"\xff\x00", b"dGVzdA==", "ä".encode()])
def test_a_message_of_sqs_reads_as_a_lane_reads_it(body: bytes) -> None:
    types = b'{"n":"Number","raw":"Binary"}'
    headers = ((b"n", b"7"), (b"raw", b"\xff"), (b"z", b"x"), (b"sqs:types", types))
    message = received(
        Outbound(topic="orders", body=body, headers=headers),
        MessageGroupId="g",
        ApproximateReceiveCount="3",
    )
    reader = SqsReader()

    assert (reader.body(message), reader.headers(message)) == content_of(message)
    assert reader.body(message) == body
    assert (reader.bookmark(message), reader.dequeue_count(message)) == ("m-1", 3)
    assert reader.enqueued_at(message) == datetime.fromtimestamp(1_700_000_000, UTC)
    assert reader.redrive(message) is None


def test_the_mark_of_a_requeued_message_of_sqs_is_an_attribute() -> None:
    mark = (b"x-poisonweb-redrive", REDRIVE.encode())
    message = received(Outbound(topic="orders", body=b"x", headers=(mark,)))
    of_a_resource = SimpleNamespace(meta=SimpleNamespace(data=message))
    reader = SqsReader()

    assert reader.redrive(message) == reader.redrive(of_a_resource) == REDRIVE
    assert reader.glance(message)[2]
    assert reader.body(of_a_resource) == b"x"


@pytest.mark.parametrize(
    ("attribute", "message_id"),
    [
        ({"DataType": "String", "StringValue": "m-ü"}, "m-ü"),
        ({"DataType": "Number", "StringValue": "7"}, "7"),
        ({"DataType": "Binary", "BinaryValue": b"m-7"}, "m-7"),
        ({"DataType": "Binary", "BinaryValue": b"\xff"}, None),
    ],
    ids=str,
)
def test_a_message_of_sqs_has_its_own_id_in_an_attribute(
    attribute: dict[str, Any], message_id: str | None
) -> None:
    attributes = {"message_id": attribute, "order": attribute}
    message = {"MessageId": "s-1", "Body": "x", "MessageAttributes": attributes}
    reader = SqsReader()

    assert reader.message_id(message) == message_id
    assert SqsReader(id_attribute="order").message_id(message) == message_id
    assert SqsReader(id_attribute=None).message_id(message) is None
    assert SqsReader(id_attribute="other").message_id(message) is None
    # Copies are messages of their own.
    assert reader.glance(message) == ("s-1", number_of("s-1"), False)
    assert reader.numbering(frozenset())(message) == number_of("s-1")
    again = reader.number_again(bookmark="s-1", message_id="m-7", seq=None)
    assert again == number_of("s-1")


def test_a_message_of_sqs_without_attributes_is_read() -> None:
    reader, message = SqsReader(), {"MessageId": "m-1", "Body": "x"}

    assert (reader.headers(message), reader.redrive(message)) == ((), None)
    assert (reader.enqueued_at(message), reader.dequeue_count(message)) == (None, None)
    assert reader.message_id(message) is None


def test_a_body_that_others_mark_as_base64_stays_what_it_is() -> None:
    """Poisonweb sends text as it is: what is base64 of text was so before."""
    mark = {"DataType": "String", "StringValue": "base64"}
    message = {
        "MessageId": "m-1",
        "Body": base64.b64encode(b"text").decode(),
        "MessageAttributes": {"x-poisonweb-body": mark},
    }

    assert (SqsReader().body(message), SqsReader().headers(message)) == content_of(
        {**message, "Attributes": {}}
    )


# Azure


def queued(content: Any) -> QueueMessage:
    message = QueueMessage(content=content)
    message.id, message.inserted_on, message.dequeue_count = "m-1", NOON, 3
    return message


@pytest.mark.parametrize("text", ["dGVzdDE=", "plain", "test", "", "ä", "dGVzdDE"])
@pytest.mark.parametrize("encoding", ["base64", "none"])
def test_a_message_of_azure_reads_as_a_lane_reads_it(text: str, encoding: Any) -> None:
    reader, message = AzureQueueReader(encoding), queued(text)

    content = message_text.read(text, expected=Encoding(encoding), usual=Encoding.NONE)

    assert (reader.body(message), reader.headers(message)) == (
        content.body,
        content.headers,
    )
    for usual in Encoding:
        again = message_text.write(
            reader.body(message), reader.headers(message), usual=usual
        )
        assert again == text


def test_reads_the_facts_of_an_azure_message() -> None:
    reader, message = AzureQueueReader(), queued("plain")

    assert (reader.bookmark(message), reader.redrive(message)) == ("m-1", None)
    assert (reader.enqueued_at(message), reader.dequeue_count(message)) == (NOON, 3)


def test_a_body_that_the_client_of_azure_has_decoded_is_taken_as_it_is() -> None:
    reader, message = AzureQueueReader("decoded"), queued(b"\xff")

    assert (reader.body(message), reader.headers(message)) == (b"\xff", ())


def test_an_unknown_azure_encoding_is_refused() -> None:
    with pytest.raises(Misconfigured, match="base64, none or decoded"):
        AzureQueueReader("utf-8")  # type: ignore[arg-type]


# All of them


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (PikaReader(), pika_delivery(message_id="m-1")),
        (PikaReader(), pika_delivery()),
        (PikaReader(), pika_delivery(message_id="m-1", headers={MARK: REDRIVE})),
        (PikaReader(), pika_delivery(headers={MARK: REDRIVE})),
        (AioPikaReader(), incoming(message_id="m-1")),
        (AioPikaReader(), incoming()),
        (AioPikaReader(), incoming(message_id="m-1", headers={MARK: REDRIVE})),
        (AioPikaReader(), incoming(headers={MARK: REDRIVE})),
        (SqsReader(), {"MessageId": "m-1", "Body": "x"}),
        (SqsReader(), received(MARKED)),
        (AzureQueueReader(), queued("x")),
    ],
)
def test_a_fast_number_is_that_of_the_methods(reader: Reader, message: Any) -> None:
    bookmark, number, is_redriven = reader.glance(message)
    fast, skipping = reader.numbering(frozenset()), reader.numbering({bookmark})

    assert fast(message) == (0 if is_redriven else number)
    assert skipping(message) == 0


# Celery


def test_reads_the_message_of_a_task() -> None:
    headers = {"lang": "py", "id": "t-1", "retries": 0, "compression": "gzip"}
    properties = {"content_type": "application/json", "content_encoding": "utf-8"}
    request = SimpleNamespace(
        **headers,
        args=[1, "ä"],
        kwargs={"k": 2},
        callbacks=None,
        errbacks=None,
        **{"chain": None, "chord": None, "x-poisonweb-redrive": REDRIVE},
        properties={**properties, "application_headers": headers},
    )
    reader, message = CeleryReader(), TaskMessage(task=None, request=request)

    assert reader.glance(message)[::2] == ("t-1", True)
    assert reader.message_id(message) == "t-1"
    embedded = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    assert json.loads(reader.body(message)) == [[1, "ä"], {"k": 2}, embedded]
    assert reader.headers(message) == (
        (b"amqp.content_type", b"application/json"),
        (b"amqp.content_encoding", b"utf-8"),
        (b"lang", b"py"),
        (b"id", b"t-1"),
        (b"retries", b'{"$I": 0}'),
    )
    assert (reader.redrive(message), reader.dequeue_count(message)) == (REDRIVE, None)


def test_a_task_of_another_broker_has_the_headers_of_its_request() -> None:
    request = SimpleNamespace(
        lang="py",
        id="t-1",
        args=[],
        kwargs={},
        hostname="h",
        properties={"correlation_id": "t-1", "delivery_tag": "d"},
    )

    headers = CeleryReader().headers(TaskMessage(task=None, request=request))

    assert headers == (
        (b"amqp.correlation_id", b"t-1"),
        (b"lang", b"py"),
        (b"id", b"t-1"),
    )
