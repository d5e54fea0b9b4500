"""Kafka Connect: the context headers of a sink connector's dead-letter queue."""

from __future__ import annotations

from collections.abc import Collection

from apps.brokers.vocabularies.story import HeaderMap, PartialStory, parse_count
from poisonguard import contract

NAME = "kafka-connect"

PREFIX = "__connect.errors."
_CONVERTERS = frozenset({"KEY_CONVERTER", "VALUE_CONVERTER", "HEADER_CONVERTER"})


def read_story(headers: HeaderMap) -> PartialStory:
    """Read the context headers; Connect writes every value as text."""
    kind = headers.text(f"{PREFIX}exception.class.name")
    topic = headers.text(f"{PREFIX}topic")
    if not kind and not topic:
        return PartialStory()
    return PartialStory(
        cause=_cause(headers.text(f"{PREFIX}stage")),
        exception_type=kind,
        exception_message=headers.text(f"{PREFIX}exception.message"),
        exception_traceback=headers.text(f"{PREFIX}exception.stacktrace"),
        original_bookmark=_bookmark(headers),
        origin=topic,
        consumer_group=headers.text(f"{PREFIX}connector.name"),
        client_name=_task(headers),
    )


def failure_headers(headers: HeaderMap) -> Collection[bytes]:
    # Connect always adds them, and a header that occurs twice has two meanings.
    return headers.among(prefixes=(PREFIX,))


def _cause(stage: str) -> contract.Cause:
    if stage.strip().upper() in _CONVERTERS:
        return contract.Cause.UNDECODABLE
    return contract.Cause.EXHAUSTED


def _bookmark(headers: HeaderMap) -> str | None:
    partition = parse_count(headers.text(f"{PREFIX}partition"))
    offset = headers.text(f"{PREFIX}offset").strip()
    if partition is None or not offset.isascii() or not offset.isdigit():
        return None
    return f"{partition}:{offset[:19]}"


def _task(headers: HeaderMap) -> str:
    connector = headers.text(f"{PREFIX}connector.name")
    task = headers.text(f"{PREFIX}task.id")
    return f"{connector}-{task}" if connector and task else ""
