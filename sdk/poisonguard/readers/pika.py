"""RabbitMQ messages as pika hands them out: `(method, properties, body)`.

Have producers set `message_id`. Without one RabbitMQ tells two deliveries of a message
from two messages no better than we can: attempts are not counted across restarts, and
of crashes equal bodies count as one message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container
from datetime import datetime
from typing import Any

from poisonguard.contract import REDRIVE_HEADER
from poisonguard.readers import Headers, Reader, amqp, number_of

# pika's Basic.Deliver or Basic.GetOk, BasicProperties, and the body
Delivery = tuple[Any, Any, bytes]


class PikaReader(Reader):
    """Read the arguments of pika's callback behind the channel."""

    def numbering(self, skipped: Container[str]) -> Callable[[Delivery], int]:
        """Return a numbering by message id; 0 for a skipped or redriven message."""
        slowly, from_bytes = super().numbering(skipped), int.from_bytes
        redrive = REDRIVE_HEADER

        def number(message: Delivery) -> int:
            properties = message[1]
            bookmark, headers = properties.message_id, properties.headers
            if not bookmark:
                return slowly(message)
            if bookmark in skipped or (headers and redrive in headers):
                return 0
            # `number_of` inlined; the slow path handles what is no text or no UTF-8.
            return hash(from_bytes(bookmark.encode())) + 1

        return number

    def bookmark(self, message: Delivery) -> str:
        """Return a pika message's id, else one of the delivery and body's digest."""
        method, properties, body = message
        if properties.message_id:
            return str(properties.message_id)
        # pika generates a new consumer tag for each subscription.
        consumer = getattr(method, "consumer_tag", None) or "get"
        digest = hashlib.sha256(body).hexdigest()[:16]
        return f"{consumer}/{method.delivery_tag}/{digest}"

    def number(self, message: Delivery) -> int:
        """Return a hash of a pika message's id, or of its body without an id."""
        _, properties, body = message
        return number_of(properties.message_id or hashlib.sha256(body).hexdigest())

    def has_identity(self, message: Delivery) -> bool:
        """Tell whether a RabbitMQ message of pika has a message id."""
        return bool(message[1].message_id)

    def message_id(self, message: Delivery) -> str | None:
        return message[1].message_id or None

    def body(self, message: Delivery) -> bytes:
        return bytes(message[2])

    def headers(self, message: Delivery) -> Headers:
        """Return a message's AMQP properties and headers as a lane stores them."""
        return amqp.pairs(vars(message[1]), message[1].headers or {})

    def redrive(self, message: Delivery) -> str | None:
        """Return the value of a pika message's redrive header, or None."""
        headers = message[1].headers
        return amqp.redrive(headers) if headers else None

    def enqueued_at(self, message: Delivery) -> datetime | None:
        """Return the RabbitMQ producer's timestamp of the message, or None."""
        return amqp.moment(message[1].timestamp)

    def content_type(self, message: Delivery) -> str | None:
        return message[1].content_type or None

    def dequeue_count(self, message: Delivery) -> int | None:
        """Return how often a quorum queue delivered the message, or None."""
        return amqp.dequeue_count(message[1].headers)
