"""A newcomer's own RabbitMQ, with a consumer that crashes on one message.

No consumer gives up on the message: the quorum queue counts unsettled deliveries, and
dead-letters a message that had too many.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pika

from tests.brokers.rabbitmq import RabbitMqServer

TOPIC, QUEUE = "payments", "payments-dead"
BODY = b'{"payment": 4711}'
HEADERS = {"tenant": "acme", "attempt": 1}
MARK = "x-poisonweb-redrive"
DELIVERY_LIMIT = 3
CONSUMER = Path(__file__).with_name("crashing_pika_consumer.py")


class RabbitMqWithManagement:
    def __init__(self, server: RabbitMqServer) -> None:
        self._server = server
        self.url = server.url
        self.options = json.dumps({"management_url": server.management_url})
        arguments = {
            "x-queue-type": "quorum",
            "x-delivery-limit": DELIVERY_LIMIT,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": QUEUE,
        }
        with server.connection() as connection, connection.channel() as channel:
            channel.queue_declare(QUEUE, durable=True)
            channel.queue_declare(TOPIC, durable=True, arguments=arguments)

    def fail(self) -> None:
        """Send a payment, and let its consumer crash until the queue gives it up."""
        properties = pika.BasicProperties(headers=HEADERS, message_id="m-4711")
        with self._server.connection() as connection, connection.channel() as channel:
            channel.confirm_delivery()
            channel.basic_publish("", TOPIC, BODY, properties, mandatory=True)
        for _ in range(DELIVERY_LIMIT + 1):
            crashed = self._consume()
            assert "KeyError: 'currency'" in crashed.stderr, crashed

    def dead_letters(self) -> int:
        with self._server.connection() as connection, connection.channel() as channel:
            return int(channel.queue_declare(QUEUE, passive=True).method.message_count)

    def consumed(self) -> dict[str, Any]:
        """Fix the consumer; return the message that it handles, with its headers."""
        handled = self._consume("mended")
        assert handled.returncode == 0, handled.stderr
        message: dict[str, Any] = json.loads(handled.stdout)
        return message

    def _consume(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(CONSUMER), f"{self.url}%2F", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
