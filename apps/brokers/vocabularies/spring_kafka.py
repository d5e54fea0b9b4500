"""Spring for Apache Kafka: what DeadLetterPublishingRecoverer and retry topics add.

Numbers are big-endian: four bytes for a partition and for attempts, eight for an
offset. `exception-fqcn` is most often Spring's own wrapper around every exception of a
listener; what names a problem is its cause.
"""

from __future__ import annotations

from collections.abc import Collection

from apps.brokers.vocabularies import stacks
from apps.brokers.vocabularies.story import Found, Told, counted
from poisonguard import contract

NAME = "spring-kafka"

DLT = "kafka_dlt-"
# The same in the topics between, as long as Spring tries again.
BETWEEN = "kafka_"
# A redriven message that kept its count of attempts would be given up on at once, and
# what Spring finds here of an original it keeps instead of noting the new one.
_WROTE = (DLT, "kafka_exception-", "kafka_original-", "retry_topic-")
_ATTEMPTS = ("retry_topic-attempts", "kafka_deliveryattempt")


def told(found: Found) -> Told:
    prefix = next((p for p in (DLT, BETWEEN) if _is_there(found, p)), None)
    if prefix is None:
        return Told()
    stack = found.text(f"{prefix}exception-stacktrace")
    kind = found.first(f"{prefix}exception-cause-fqcn", f"{prefix}exception-fqcn")
    own = (words for name, words in stacks.java(stack) if name == kind and words)
    return Told(
        cause=_cause(kind) if kind else None,
        exception_type=kind,
        exception_message=next(own, found.text(f"{prefix}exception-message")),
        exception_traceback=stack,
        original_bookmark=_bookmark(found, prefix),
        origin=found.text(f"{prefix}original-topic"),
        consumer_group=found.text(f"{prefix}original-consumer-group"),
        attempts=_attempts(found),
    )


def wrote(found: Found) -> Collection[bytes]:
    return found.among(_ATTEMPTS, prefixes=_WROTE)


def _is_there(found: Found, prefix: str) -> bool:
    return f"{prefix}exception-fqcn" in found or f"{prefix}original-topic" in found


def _cause(kind: str) -> contract.Cause:
    if kind.endswith(".DeserializationException"):
        return contract.Cause.UNDECODABLE
    return contract.Cause.EXHAUSTED


def _bookmark(found: Found, prefix: str) -> str | None:
    """Name the original by its partition and offset, which is what Kafka knows."""
    partition = _number(found.raw(f"{prefix}original-partition"), size=4)
    offset = _number(found.raw(f"{prefix}original-offset"), size=8)
    return None if partition is None or offset is None else f"{partition}:{offset}"


def _attempts(found: Found) -> int | None:
    counts = (_number(found.raw(name), size=4) for name in _ATTEMPTS)
    count = next((count for count in counts if count is not None), None)
    return None if count is None else min(count, contract.COUNT_LIMIT)


def _number(value: bytes, *, size: int) -> int | None:
    """Read a big-endian number; who wrote these by hand, wrote digits."""
    if len(value) == size:
        number = int.from_bytes(value, "big", signed=True)
        return number if number >= 0 else None
    return counted(value.decode("utf-8", "replace"))
