"""Kafka Connect: the context headers of a sink connector's dead-letter queue."""

from __future__ import annotations

from collections.abc import Collection

from apps.brokers.failure_headers.story_type_and_header_values import (
    HeaderMap,
    PartialStory,
    parse_count,
)
from poisonguard import contract

NAME = "kafka-connect"

PREFIX = "__connect.errors."
_CONVERTERS = frozenset({"KEY_CONVERTER", "VALUE_CONVERTER", "HEADER_CONVERTER"})


def read_story(headers: HeaderMap) -> PartialStory:
    """Read a failure's story from Kafka Connect's headers; empty without them."""
    kind = headers.text(f"{PREFIX}exception.class.name")
    topic = headers.text(f"{PREFIX}topic")
    if not kind and not topic:
        return PartialStory()
    return PartialStory(
        cause=_cause_of_stage(headers.text(f"{PREFIX}stage")),
        exception_type=kind,
        exception_message=headers.text(f"{PREFIX}exception.message"),
        exception_traceback=headers.text(f"{PREFIX}exception.stacktrace"),
        original_bookmark=_original_bookmark(headers),
        origin=topic,
        consumer_group=headers.text(f"{PREFIX}connector.name"),
        client_name=_task_name(headers),
    )


def failure_headers(headers: HeaderMap) -> Collection[bytes]:
    """Name the context headers that Kafka Connect adds."""
    # Connect always adds them, and a header that occurs twice has two meanings.
    return headers.among(prefixes=(PREFIX,))


def _cause_of_stage(stage: str) -> contract.Cause:
    """Return what failed in Kafka Connect: converters cannot decode, others gave up."""
    if stage.strip().upper() in _CONVERTERS:
        return contract.Cause.UNDECODABLE
    return contract.Cause.EXHAUSTED


def _original_bookmark(headers: HeaderMap) -> str | None:
    """Return Kafka Connect's `partition:offset` of the original message, or None."""
    partition = parse_count(headers.text(f"{PREFIX}partition"))
    offset = headers.text(f"{PREFIX}offset").strip()
    if partition is None or not offset.isascii() or not offset.isdigit():
        return None
    return f"{partition}:{offset[:19]}"


def _task_name(headers: HeaderMap) -> str:
    """Name Kafka Connect's connector and task; "" unless both are there."""
    connector = headers.text(f"{PREFIX}connector.name")
    task = headers.text(f"{PREFIX}task.id")
    return f"{connector}-{task}" if connector and task else ""
