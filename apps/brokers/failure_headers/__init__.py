"""The headers in which producers say why a message is a dead letter, by framework.

All vocabularies are asked in a fixed order: our own headers first, then the frameworks,
and at last the broker, which seldom knows the reason. The first answer wins.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, Protocol

from apps.brokers.adapter_contract import Header
from apps.brokers.failure_headers import (
    celery,
    kafka_connect,
    masstransit,
    nservicebus,
    own_documented_headers,
    rabbitmq,
    rebus,
    spring_amqp,
    spring_kafka,
    sqs,
)
from apps.brokers.failure_headers.story_type_and_header_values import (
    HeaderMap,
    PartialStory,
    Story,
    has_value,
)

__all__ = ["VOCABULARIES", "Story", "leaving", "read"]

# More bytes of names than any message has that was not made to do harm.
REMEMBERED_BYTES = 4096


class Vocabulary(Protocol):
    """The interface of each module here; no message makes it raise."""

    @property
    def NAME(self) -> str: ...  # noqa: N802, a constant of a module

    def read_story(self, headers: HeaderMap) -> PartialStory:
        """Read why a message failed from headers in this vocabulary."""

    def failure_headers(self, headers: HeaderMap) -> Collection[bytes]:
        """Return the names, in small letters, of the headers about the failure.

        Only the names decide, not the values.

        A redrive leaves these headers out: the redriven message has not failed yet, and
        has all its retries. Headers of the message itself go along.
        """


VOCABULARIES: tuple[Vocabulary, ...] = (
    own_documented_headers,
    spring_kafka,
    spring_amqp,
    kafka_connect,
    nservicebus,
    masstransit,
    rebus,
    celery,
    rabbitmq,
    sqs,
)


def read(headers: Sequence[Header]) -> Story:
    """Read why a dead letter failed, from its headers in all vocabularies."""
    header_map = HeaderMap(headers)
    stories = [(one.NAME, one.read_story(header_map)) for one in VOCABULARIES]
    merged: dict[str, Any] = {}
    for field in fields(PartialStory):
        values = (getattr(story, field.name) for _, story in stories)
        first = next(filter(has_value, values), None)
        if first is not None:
            merged[field.name] = first
    return Story(
        **merged, told_by=tuple(name for name, story in stories if story.says_why)
    )


def leaving(headers: Sequence[Header]) -> tuple[Header, ...]:
    """Return the headers for a redrive: as stored, less those about the failure."""
    names = frozenset(name.lower() for name, _ in headers)
    is_usual = sum(map(len, names)) <= REMEMBERED_BYTES
    failure_headers = (
        _cached_failure_headers(names) if is_usual else _failure_headers(names)
    )
    if not failure_headers:
        return tuple(headers)
    return tuple(
        header for header in headers if header[0].lower() not in failure_headers
    )


def _failure_headers(names: frozenset[bytes]) -> frozenset[bytes]:
    """Return the header names that any vocabulary uses for the failure."""
    header_map = HeaderMap([(name, b"") for name in names])
    return frozenset(
        name for one in VOCABULARIES for name in one.failure_headers(header_map)
    )


# As a rule, the messages of a topic have the same headers.
_cached_failure_headers = lru_cache(maxsize=256)(_failure_headers)
