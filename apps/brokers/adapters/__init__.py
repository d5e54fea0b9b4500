"""One module for each kind of broker, and the way to a port by the kind's name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypedDict, Unpack

from apps.brokers.adapters.redis_streams import (
    RedisDeadLetterReader,
    RedisPublisher,
    RedisStreams,
    RedisTopicAdmin,
)
from apps.brokers.ports import DeadLetterReader, Publisher, TopicAdmin
from apps.core.errors import Invalid, Unavailable

KINDS = ("redis_streams",)
FROM_ENVIRONMENT = "env:"


class BrokerValues(TypedDict):
    """What a broker is: `url` is the address or `env:NAME`, to keep passwords out."""

    kind: str
    url: str
    options: Mapping[str, object]


class TopicValues(BrokerValues):
    """What a topic is; `dead_letter_queue` "" stands for the broker's own default."""

    topic: str
    dead_letter_queue: str
    max_dequeue_count: int
    visibility_timeout: float


def publisher(**broker: Unpack[BrokerValues]) -> Publisher:
    """Connect to nothing yet; raise `Invalid` for values that cannot work."""
    _check_kind(broker["kind"])
    return RedisPublisher(
        RedisStreams.from_options(broker["options"], url=_address(broker["url"]))
    )


def dead_letter_reader(**topic: Unpack[TopicValues]) -> DeadLetterReader:
    """Connect to nothing yet; raise `Invalid` for values that cannot work."""
    return RedisDeadLetterReader(_redis_streams(topic))


def topic_admin(**topic: Unpack[TopicValues]) -> TopicAdmin:
    """Connect to nothing yet; raise `Invalid` for values that cannot work."""
    return RedisTopicAdmin(_redis_streams(topic))


def _redis_streams(topic: TopicValues) -> RedisStreams:
    _check_kind(topic["kind"])
    return RedisStreams.from_options(
        topic["options"],
        url=_address(topic["url"]),
        topic=topic["topic"],
        dead_letter_queue=topic["dead_letter_queue"],
        max_dequeue_count=topic["max_dequeue_count"],
        visibility_timeout=topic["visibility_timeout"],
    )


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise Invalid("kind", f"{kind} is unknown: use one of {', '.join(KINDS)}.")


def _address(url: str) -> str:
    if not url.startswith(FROM_ENVIRONMENT):
        return url
    name = url.removeprefix(FROM_ENVIRONMENT)
    if name not in os.environ:
        raise Unavailable(f"The broker's address is to be in {name}, which is not set.")
    return os.environ[name]
