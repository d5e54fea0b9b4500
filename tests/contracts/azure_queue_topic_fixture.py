"""A queue and its poison queue on Azurite, used by Azure's own client."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Sequence
from contextlib import suppress
from uuid import uuid4

from azure.core.exceptions import ResourceExistsError
from azure.storage.queue import QueueClient, QueueServiceClient

from apps.brokers.adapter_contract import Header
from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.adapters.azure_queue.adapter import ADAPTER
from tests.brokers.azurite import ACCOUNT, AzureQueueMessage, AzuriteServer
from tests.contracts.topic_fixture_interface import (
    MAX_DEQUEUE_COUNT,
    Message,
    StagePorts,
)

VISIBILITY_TIMEOUT = 2.0
# Visibility timeout of a consumer, in seconds.
SHORTEST_TIMEOUT = 1
A_FEW = 4


class AzureStage(StagePorts):
    """Two queues of its own on a shared server, whose producers write base64."""

    adapter = ADAPTER

    def __init__(self, server: AzuriteServer, account: str = ACCOUNT) -> None:
        server.start()
        self.server = server
        self.url = server.url_of(account)
        self.topic = f"orders-{uuid4().hex[:20]}"
        self.queue = f"{self.topic}-poison"
        self.broker_options: dict[str, object] = {}
        self.options: dict[str, object] = {}
        self._client = QueueServiceClient.from_connection_string(
            self.url, retry_total=0
        )
        self.make(self.topic)
        self.make(self.queue)

    @property
    def broker(self) -> BrokerSettings:
        return BrokerSettings(url=self.url, options=self.broker_options)

    @property
    def settings(self) -> TopicSettings:
        return TopicSettings(
            topic=self.topic,
            max_dequeue_count=MAX_DEQUEUE_COUNT,
            visibility_timeout=VISIBILITY_TIMEOUT,
            options=self.options,
        )

    def put(self, topic: str, body: bytes, headers: Sequence[Header] = ()) -> None:
        assert not headers
        self.put_text(topic, base64.b64encode(body).decode())

    def put_text(self, topic: str, text: str) -> None:
        self.client(topic).send_message(text)

    def put_later(self, topic: str, body: bytes, *, seconds: int) -> None:
        text = base64.b64encode(body).decode()
        self.client(topic).send_message(text, visibility_timeout=seconds)

    def contents(self, topic: str) -> list[Message]:
        return [(body_of(text), ()) for text in self.texts(topic)]

    def texts(self, topic: str) -> list[str]:
        return [message.text for message in self.look(topic)]

    def look(self, topic: str) -> list[AzureQueueMessage]:
        return self.server.look(topic)

    def consume(self, topic: str) -> list[Message]:
        client, texts = self.client(topic), list[str]()
        for message in client.receive_messages(messages_per_page=32):
            client.delete_message(message)
            texts.append(message.content)
        return [(body_of(text), ()) for text in texts]

    def fail(self, times: int) -> None:
        """Receive every message of the topic so often without settling.

        A few messages are returned by one call each; many come back by their timeout.
        """
        client = self.client(self.topic)
        for _ in range(times):
            messages = list(
                client.receive_messages(
                    messages_per_page=32, visibility_timeout=SHORTEST_TIMEOUT
                )
            )
            if len(messages) > A_FEW:
                time.sleep(SHORTEST_TIMEOUT + 0.01)
                continue
            for message in messages:
                client.update_message(message, visibility_timeout=0)

    def make(self, queue: str) -> None:
        with suppress(ResourceExistsError):
            self._client.create_queue(queue)

    def client(self, queue: str) -> QueueClient:
        return self._client.get_queue_client(queue)

    def go_away(self) -> None:
        self.server.kill()

    def come_back(self) -> None:
        self.server.start()


def body_of(text: str) -> bytes:
    """Decode a message as Azure Functions do; return plain text as it is."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return text.encode()
