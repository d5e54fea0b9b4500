"""Spring for Apache Kafka: headers of DeadLetterPublishingRecoverer and retry topics.

Numbers are big-endian: four bytes for a partition and for attempts, eight for an
offset. `exception-fqcn` is most often Spring's own wrapper around every exception of a
listener; its cause names the problem.
"""

from __future__ import annotations

from collections.abc import Collection

from apps.brokers.failure_headers import stack_trace_exceptions
from apps.brokers.failure_headers.story_type_and_header_values import (
    HeaderMap,
    PartialStory,
    parse_count,
)
from poisonguard import contract

NAME = "spring-kafka"

DLT = "kafka_dlt-"
# The same headers on retry topics, while Spring still tries.
BETWEEN = "kafka_"
# Spring gives up at once on a redriven message that kept its count of attempts, and
# keeps the original's headers that it finds instead of writing new ones.
_FAILURE_HEADER_PREFIXES = (DLT, "kafka_exception-", "kafka_original-", "retry_topic-")
_ATTEMPTS = ("retry_topic-attempts", "kafka_deliveryattempt")


def read_story(headers: HeaderMap) -> PartialStory:
    """Read a failure from Spring Kafka's headers of dead-letter or retry topics."""
    prefix = next((p for p in (DLT, BETWEEN) if _has_story(headers, p)), None)
    if prefix is None:
        return PartialStory()
    stack = headers.text(f"{prefix}exception-stacktrace")
    kind = headers.first(f"{prefix}exception-cause-fqcn", f"{prefix}exception-fqcn")
    own = (
        words
        for name, words in stack_trace_exceptions.java(stack)
        if name == kind and words
    )
    return PartialStory(
        cause=_cause_of_exception(kind) if kind else None,
        exception_type=kind,
        exception_message=next(own, headers.text(f"{prefix}exception-message")),
        exception_traceback=stack,
        original_bookmark=_original_bookmark(headers, prefix),
        origin=headers.text(f"{prefix}original-topic"),
        consumer_group=headers.text(f"{prefix}original-consumer-group"),
        attempts=_attempts(headers),
    )


def failure_headers(headers: HeaderMap) -> Collection[bytes]:
    """Name Spring Kafka's headers of the failure and of attempts."""
    return headers.among(_ATTEMPTS, prefixes=_FAILURE_HEADER_PREFIXES)


def _has_story(headers: HeaderMap, prefix: str) -> bool:
    """Tell whether Spring Kafka's headers with this prefix describe a failure."""
    return f"{prefix}exception-fqcn" in headers or f"{prefix}original-topic" in headers


def _cause_of_exception(kind: str) -> contract.Cause:
    """Return the cause that a Java exception in Spring Kafka's headers stands for."""
    if kind.endswith(".DeserializationException"):
        return contract.Cause.UNDECODABLE
    return contract.Cause.EXHAUSTED


def _original_bookmark(headers: HeaderMap, prefix: str) -> str | None:
    """Return Spring Kafka's partition and offset of the original message, or None."""
    partition = _parse_number(headers.raw(f"{prefix}original-partition"), size=4)
    offset = _parse_number(headers.raw(f"{prefix}original-offset"), size=8)
    return None if partition is None or offset is None else f"{partition}:{offset}"


def _attempts(headers: HeaderMap) -> int | None:
    """Read how often a Spring consumer tried the message; None if unknown."""
    counts = (_parse_number(headers.raw(name), size=4) for name in _ATTEMPTS)
    count = next((count for count in counts if count is not None), None)
    return None if count is None else min(count, contract.COUNT_LIMIT)


def _parse_number(value: bytes, *, size: int) -> int | None:
    """Parse a Spring Kafka header's big-endian number, or digits written by hand."""
    if len(value) == size:
        number = int.from_bytes(value, "big", signed=True)
        return number if number >= 0 else None
    return parse_count(value.decode("utf-8", "replace"))
