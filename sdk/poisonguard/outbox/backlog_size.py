"""How much waits in an outbox, at most a second ago.

A sweeper measures every second; where it does not, a process counts a bounded number of
rows by itself. A process reads once for all its connections, and no lock is held while
it reads: threads that find the figures too old at the same time read each for itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from poisonguard.errors import OutboxFull
from poisonguard.outbox.connections import ProducerConnection, Row
from poisonguard.outbox.limits import OutboxLimits, TopicLimits
from poisonguard.outbox.producer_statements import COUNTED_ROWS, ProducerStatements

VALID_SECONDS = 1.0

CacheKey = tuple[object, ...]
clock = time.monotonic


@dataclass(frozen=True, slots=True)
class WaitingFigures:
    """What waits for one topic, or in the whole outbox; `age` of the oldest row."""

    rows: int = 0
    bytes: int = 0
    age: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The figures of all topics, which may be used until `expires_at`."""

    topics: Mapping[str, WaitingFigures]
    total: WaitingFigures
    expires_at: float


_cache = dict[CacheKey, Measurement]()


def measurement(
    key: CacheKey, connection: ProducerConnection, statements: ProducerStatements
) -> Measurement:
    """Return the backlog figures of a producer's outbox, which `key` stands for.

    They are read again once they are too old.
    """
    cached = _cache.get(key)
    if cached is None or clock() >= cached.expires_at:
        cached = _cache[key] = _measure(connection, statements)
    return cached


def check_room(limits: OutboxLimits, topic: str, figures: Measurement) -> None:
    """Raise OutboxFull if more outbox messages wait than a limit allows."""
    of_topic = figures.topics.get(topic, WaitingFigures())
    _check(limits.of(topic), of_topic, topic)
    _check(limits, figures.total, None)


def _check(
    limits: TopicLimits | OutboxLimits, figures: WaitingFigures, topic: str | None
) -> None:
    place = "The outbox" if topic is None else f"Topic {topic!r} of the outbox"
    if limits.rows is not None and figures.rows >= limits.rows:
        text = f"{place} has {figures.rows:,} rows waiting, and its limit is"
        raise _full(f"{text} {limits.rows:,}", topic, "rows", figures.rows, limits.rows)
    if limits.bytes is not None and figures.bytes >= limits.bytes:
        text = f"{place} has {figures.bytes:,} bytes waiting, and its limit is"
        raise _full(
            f"{text} {limits.bytes:,}", topic, "bytes", figures.bytes, limits.bytes
        )
    if limits.age is not None and figures.age >= limits.age.total_seconds():
        text = f"{place} has a row waiting for {figures.age:,.0f} s, and its limit is"
        seconds = limits.age.total_seconds()
        raise _full(f"{text} {seconds:,.0f} s", topic, "age", figures.age, seconds)


def _full(
    text: str, topic: str | None, measure: str, figure: float, limit: float
) -> OutboxFull:
    return OutboxFull(
        f"{text}: see whether its sweeper runs and the broker takes messages; call"
        " wait_for_room() outside a transaction, or raise the limit in OutboxLimits.",
        topic=topic,
        measure=measure,
        figure=figure,
        limit=limit,
    )


def _measure(
    connection: ProducerConnection, statements: ProducerStatements
) -> Measurement:
    """For a producer, read the sweeper's backlog figures; if too old, count rows."""
    began = clock()
    rows = connection.fetch(statements.read_figures)
    ages = [row[4] for row in rows if 0 <= row[4] < VALID_SECONDS]
    if ages:
        return _measurement(_by_topic(rows), began + VALID_SECONDS - min(ages))
    began = clock()
    counted = _by_topic(connection.fetch(statements.count))
    if sum(each.rows for each in counted.values()) >= COUNTED_ROWS:
        counted = _larger(counted, _by_topic(rows))
    return _measurement(counted, began + VALID_SECONDS)


def _by_topic(rows: Iterable[Row]) -> dict[str, WaitingFigures]:
    return {
        topic: WaitingFigures(waiting_rows, waiting_bytes, age or 0.0)
        for topic, waiting_rows, waiting_bytes, age, *_ in rows
    }


def _larger(
    counted: Mapping[str, WaitingFigures], former: Mapping[str, WaitingFigures]
) -> dict[str, WaitingFigures]:
    """For a producer, return each topic's larger backlog figures.

    They were counted now, or written before. Not all waiting rows were counted now.
    """
    none = WaitingFigures()
    return {
        topic: max(
            counted.get(topic, none),
            former.get(topic, none),
            key=lambda each: each.rows,
        )
        for topic in counted.keys() | former.keys()
    }


def _measurement(
    topics: Mapping[str, WaitingFigures], expires_at: float
) -> Measurement:
    total = WaitingFigures(
        sum(each.rows for each in topics.values()),
        sum(each.bytes for each in topics.values()),
        max((each.age for each in topics.values()), default=0.0),
    )
    return Measurement(topics=topics, total=total, expires_at=expires_at)
