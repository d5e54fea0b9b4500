"""RabbitMQ itself: the headers that it adds when it dead-letters a message.

Our adapter keeps the array `x-death` as JSON; its first entry is the latest death.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from apps.brokers.failure_headers.story_type_and_header_values import (
    HeaderMap,
    PartialStory,
)
from poisonguard import contract

NAME = "rabbitmq"

DEATHS = "x-death"
# Of the dead-letter queue: it counts our own reads, not those of consumers.
DELIVERIES = "x-delivery-count"
# RabbitMQ drops a message whose deaths look like a cycle, so a redriven one must not
# bring them along; counts would continue where they stopped.
_FAILURE_HEADERS = (DEATHS, DELIVERIES, "x-acquired-count")
_PREFIXES = ("x-first-death-", "x-last-death-")
_CAUSES = {
    "rejected": contract.Cause.REJECTED,
    "expired": contract.Cause.EXPIRED,
    "maxlen": contract.Cause.REJECTED,
    "delivery_limit": contract.Cause.MAX_DEQUEUE_COUNT,
}
_LONGEST = 2**20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_story(headers: HeaderMap) -> PartialStory:
    """Read a message's latest death at RabbitMQ, its type and its content type."""
    death = _latest_death(headers.raw(DEATHS))
    reason = _text_or_empty(death.get("reason")) or headers.first(
        "x-last-death-reason", "x-first-death-reason"
    )
    queue = _text_or_empty(death.get("queue")) or headers.first(
        "x-last-death-queue", "x-first-death-queue"
    )
    properties = PartialStory(
        content_type=headers.text("amqp.content_type"),
        message_type=headers.text("amqp.type"),
    )
    if not reason and not queue:
        return properties
    return replace(
        properties,
        cause=_CAUSES.get(reason.strip(), contract.Cause.REJECTED) if reason else None,
        origin=queue,
        failed_at=_parse_time(death.get("time")),
    )


def failure_headers(headers: HeaderMap) -> Collection[bytes]:
    """Name RabbitMQ's headers of deaths."""
    return headers.among(_FAILURE_HEADERS, prefixes=_PREFIXES)


def _latest_death(deaths: bytes) -> Mapping[str, object]:
    """Return the latest entry of RabbitMQ's `x-death`; {} if unreadable."""
    if not deaths or len(deaths) > _LONGEST:
        return {}
    try:
        decoded = json.loads(deaths)
    except (ValueError, RecursionError):
        return {}
    entries = decoded if isinstance(decoded, list) else [decoded]
    first = entries[0] if entries else {}
    return first if isinstance(first, dict) else {}


def _text_or_empty(value: object) -> str:
    """Return a value of RabbitMQ's death if it is a text, else ""."""
    return value if isinstance(value, str) else ""


def _parse_time(value: object) -> datetime | None:
    """Parse a death's seconds since 1970, bare or as our adapter marks them."""
    seconds = value.get("$T") if isinstance(value, dict) else value
    if not isinstance(seconds, int) or isinstance(seconds, bool):
        return None
    try:
        return _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return None
