"""One queue of SQS with its dead-letter queue, used by boto3."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any
from uuid import uuid4

from boto3.session import Session
from botocore.config import Config

from apps.brokers.adapter_contract import (
    Header,
    Outbound,
)
from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.adapters.sqs.adapter import ADAPTER
from apps.brokers.adapters.sqs.messages import content_of, entry_of
from tests.brokers.moto import REGION, MotoServer
from tests.contracts.topic_fixture_interface import (
    MAX_DEQUEUE_COUNT,
    VISIBILITY_TIMEOUT,
    Message,
    StagePorts,
)


class SqsStage(StagePorts):
    """Queues of its own on a shared moto; other programs use boto3 itself."""

    adapter = ADAPTER

    def __init__(
        self,
        server: MotoServer,
        *,
        fifo: bool = False,
        visibility_timeout: float = VISIBILITY_TIMEOUT,
    ) -> None:
        self.server = server
        self.suffix = ".fifo" if fifo else ""
        name = f"orders-{uuid4().hex}"
        self.topic, self.queue = name + self.suffix, f"{name}-dlq{self.suffix}"
        self.visibility_timeout = visibility_timeout
        self.client = _client(server)
        self._declared: list[str] = []
        self.declare(self.queue)
        arn = f"arn:aws:sqs:{REGION}:123456789012:{self.queue}"
        policy = {"deadLetterTargetArn": arn, "maxReceiveCount": MAX_DEQUEUE_COUNT}
        self.declare(self.topic, RedrivePolicy=json.dumps(policy))

    @property
    def broker(self) -> BrokerSettings:
        options = {"endpoint_url": self.server.endpoint}
        return BrokerSettings(url=self.server.url, options=options)

    @property
    def settings(self) -> TopicSettings:
        return TopicSettings(
            topic=self.topic,
            dead_letter_queue=self.queue,
            visibility_timeout=self.visibility_timeout,
        )

    def declare(self, queue: str, **attributes: str) -> None:
        if self.suffix:
            attributes["FifoQueue"] = "true"
        self.client.create_queue(QueueName=queue, Attributes=attributes)
        self._declared.append(queue)

    def remove(self) -> None:
        """Delete the queues: each discovery lists them, with depths that change."""
        self.come_back()
        for queue in self._declared:
            with suppress(self.client.exceptions.QueueDoesNotExist):
                self.client.delete_queue(QueueUrl=self.url_of(queue))

    def put(self, topic: str, body: bytes, headers: Sequence[Header] = ()) -> None:
        message = entry_of(Outbound(topic=topic, body=body, headers=tuple(headers)))
        self.send(topic, **message.to_wire(0))

    def put_later(self, topic: str, body: bytes, *, seconds: int) -> None:
        self.send(topic, body.decode(), DelaySeconds=seconds)

    def send(self, topic: str, body: str = "", **wire: Any) -> str:
        """Send a message to SQS as it is; return its id."""
        wire = {"MessageBody": body} | {k: v for k, v in wire.items() if k != "Id"}
        url = self.url_of(topic)
        message_id: str = self.client.send_message(QueueUrl=url, **wire)["MessageId"]
        return message_id

    def contents(self, topic: str) -> list[Message]:
        return [content_of(_received(message)) for message in self.server.look(topic)]

    def receive(self, topic: str, **wire: Any) -> list[Any]:
        """Receive up to ten messages, as boto3 returns them."""
        reply = self.client.receive_message(
            QueueUrl=self.url_of(topic),
            MaxNumberOfMessages=10,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
            **wire,
        )
        messages: list[Any] = reply.get("Messages", [])
        return messages

    def consume(self, topic: str) -> list[Message]:
        contents: list[Message] = []
        while messages := self.receive(topic):
            for message in messages:
                contents.append(content_of(message))
                self.client.delete_message(
                    QueueUrl=self.url_of(topic), ReceiptHandle=message["ReceiptHandle"]
                )
        return contents

    def fail(self, topic: str) -> None:
        """Receive all messages of SQS once, and return them unsettled."""
        self.receive(topic, VisibilityTimeout=0)

    def url_of(self, queue: str) -> str:
        url: str = self.client.get_queue_url(QueueName=queue)["QueueUrl"]
        return url

    def go_away(self) -> None:
        self.server.kill()

    def come_back(self) -> None:
        self.server.start()


@cache
def _client(server: MotoServer) -> Any:  # boto3 makes its clients at run time
    session = Session(
        aws_access_key_id="test", aws_secret_access_key="test", region_name=REGION
    )
    config = Config(retries={"total_max_attempts": 1, "mode": "standard"})
    return session.client("sqs", endpoint_url=server.endpoint, config=config)


def _received(message: Any) -> dict[str, Any]:
    """Convert a message of moto to the form in which a consumer receives it."""
    attributes = {}
    for name, (kind, value) in message.attributes.items():
        binary = kind.startswith("Binary")
        typed = {"BinaryValue": value} if binary else {"StringValue": value.decode()}
        attributes[name] = {"DataType": kind, **typed}
    system = {"MessageGroupId": message.group} if message.group else {}
    return {
        "Body": message.body,
        "MessageAttributes": attributes,
        "Attributes": system,
    }
