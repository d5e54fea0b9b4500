"""Kafka Connect: the context headers of a sink connector's dead-letter queue."""

from __future__ import annotations

from collections.abc import Collection

from apps.brokers.vocabularies.story import Found, Told, counted
from poisonguard import contract

NAME = "kafka-connect"

PREFIX = "__connect.errors."
_CONVERTERS = frozenset({"KEY_CONVERTER", "VALUE_CONVERTER", "HEADER_CONVERTER"})


def told(found: Found) -> Told:
    """Read the context; Connect writes every value as text."""
    kind = found.text(f"{PREFIX}exception.class.name")
    topic = found.text(f"{PREFIX}topic")
    if not kind and not topic:
        return Told()
    return Told(
        cause=_cause(found.text(f"{PREFIX}stage")),
        exception_type=kind,
        exception_message=found.text(f"{PREFIX}exception.message"),
        exception_traceback=found.text(f"{PREFIX}exception.stacktrace"),
        original_bookmark=_bookmark(found),
        origin=topic,
        consumer_group=found.text(f"{PREFIX}connector.name"),
        client_name=_task(found),
    )


def wrote(found: Found) -> Collection[bytes]:
    # Connect adds them again whatever is there, and a header twice has two meanings.
    return found.among(prefixes=(PREFIX,))


def _cause(stage: str) -> contract.Cause:
    if stage.strip().upper() in _CONVERTERS:
        return contract.Cause.UNDECODABLE
    return contract.Cause.EXHAUSTED


def _bookmark(found: Found) -> str | None:
    partition = counted(found.text(f"{PREFIX}partition"))
    offset = found.text(f"{PREFIX}offset").strip()
    if partition is None or not offset.isascii() or not offset.isdigit():
        return None
    return f"{partition}:{offset[:19]}"


def _task(found: Found) -> str:
    connector = found.text(f"{PREFIX}connector.name")
    task = found.text(f"{PREFIX}task.id")
    return f"{connector}-{task}" if connector and task else ""
