"""RabbitMQ messages as aio-pika hands them out, on its event loop.

Settle a message in the task that handled it: `ack` and `nack` are coroutines there.
The guard calls `keep_alive` and `redeliver` on other threads, but needs neither here:
RabbitMQ hides no message for a time only, and a retry is waited for in the task.

Have producers set `message_id`: see `poisonguard.readers.pika`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container
from datetime import datetime
from typing import TYPE_CHECKING

from poisonguard.contract import REDRIVE_HEADER
from poisonguard.readers import Headers, Reader, amqp, number_of

if TYPE_CHECKING:
    from aio_pika.abc import AbstractIncomingMessage


class AioPikaReader(Reader):
    """Read an `aio_pika.IncomingMessage`."""

    def numbering(
        self, skipped: Container[str]
    ) -> Callable[[AbstractIncomingMessage], int]:
        """Return a numbering by message id; 0 for a skipped or redriven message."""
        with_care = super().numbering(skipped)

        def number(message: AbstractIncomingMessage) -> int:
            name, headers = message.message_id, message.headers
            if not name:
                return with_care(message)
            if name in skipped or (headers and REDRIVE_HEADER in headers):
                return 0
            return number_of(name)

        return number

    def bookmark(self, message: AbstractIncomingMessage) -> str:
        """Return an aio-pika message's id, else one of delivery and body's digest."""
        if message.message_id:
            return message.message_id
        # aio-pika generates a new consumer tag for each subscription.
        consumer = message.consumer_tag or "get"
        digest = hashlib.sha256(message.body).hexdigest()[:16]
        return f"{consumer}/{message.delivery_tag}/{digest}"

    def number(self, message: AbstractIncomingMessage) -> int:
        """Return a hash of an aio-pika message's id, or of its body without an id."""
        name = message.message_id or hashlib.sha256(message.body).hexdigest()
        return number_of(name)

    def has_identity(self, message: AbstractIncomingMessage) -> bool:
        """Tell whether a RabbitMQ message of aio-pika has a message id."""
        return bool(message.message_id)

    def message_id(self, message: AbstractIncomingMessage) -> str | None:
        return message.message_id or None

    def body(self, message: AbstractIncomingMessage) -> bytes:
        return bytes(message.body)

    def headers(self, message: AbstractIncomingMessage) -> Headers:
        """Return a message's AMQP properties and headers as a lane stores them."""
        properties = {
            **{name: getattr(message, name) for name in amqp.PROPERTIES},
            # The client returns 0 for a missing priority.
            "priority": message.priority or None,
            "expiration": _milliseconds(message.expiration),
        }
        return amqp.pairs(properties, message.headers)

    def redrive(self, message: AbstractIncomingMessage) -> str | None:
        """Return the value of an aio-pika message's redrive header, or None."""
        return amqp.redrive(message.headers)

    def enqueued_at(self, message: AbstractIncomingMessage) -> datetime | None:
        """Return the RabbitMQ producer's timestamp of the message, or None."""
        return amqp.moment(message.timestamp)

    def content_type(self, message: AbstractIncomingMessage) -> str | None:
        return message.content_type or None

    def dequeue_count(self, message: AbstractIncomingMessage) -> int | None:
        """Return how often a quorum queue delivered the message, or None."""
        return amqp.dequeue_count(message.headers)


def _milliseconds(seconds: object) -> str | None:
    """Convert a read message's expiration in seconds to AMQP's text; None for none."""
    return str(int(seconds * 1_000)) if isinstance(seconds, int | float) else None
