"""Limits of an outbox: how much may wait in it, and how large a message may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from poisonguard.errors import Misconfigured

# What Poisonweb takes when a message is quarantined.
MAX_BODY = 64 * 2**20
WAITING_ROWS = 100_000
WAITING_BYTES = 2**30
# A sweeper takes a message that is due later for one of a wrong clock.
MOST_DELAY = timedelta(days=30)


def _check(limits: TopicLimits | OutboxLimits, name: str) -> None:
    """Raise Misconfigured for an outbox limit that cannot be used."""
    for member in ("rows", "bytes", "max_body"):
        value: object = getattr(limits, member)
        if value is None and (name, member) != ("OutboxLimits", "max_body"):
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise Misconfigured(
                f"{name}: {member} is {value!r}: give a whole number, 1 or more"
                f"{'' if member == 'max_body' else ', or None for no limit'}."
            )
    age: object = limits.age
    if age is not None and not (isinstance(age, timedelta) and age > timedelta()):
        raise Misconfigured(
            f"{name}: age is {age!r}: give a timedelta above 0, or None for no limit."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicLimits:
    """Limits of one topic; None is no limit.

    `rows` and `bytes` (of bodies) are what may wait before `put` refuses more, and
    `age` is how long the oldest row may have waited since it was put. `max_body` is
    what the topic's broker takes, in bytes; None is that of the outbox.
    """

    rows: int | None = None
    bytes: int | None = None
    age: timedelta | None = None
    max_body: int | None = None

    def __post_init__(self) -> None:
        _check(self, "TopicLimits")


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxLimits:
    """Limits of a whole outbox, and of its topics; None is no limit.

    `topics` has the limits of topics by name, and `each_topic` is for the others.
    """

    rows: int | None = WAITING_ROWS
    bytes: int | None = WAITING_BYTES
    age: timedelta | None = None
    max_body: int = MAX_BODY
    each_topic: TopicLimits = TopicLimits()
    topics: Mapping[str, TopicLimits] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self, "OutboxLimits")
        topics: object = self.topics
        if not isinstance(topics, Mapping):
            raise Misconfigured(
                f"OutboxLimits: topics is {topics!r}: give a dictionary of TopicLimits"
                " by the names of topics."
            )
        for name, limits in {"each_topic": self.each_topic, **topics}.items():
            if not isinstance(limits, TopicLimits):
                raise Misconfigured(
                    f"OutboxLimits: {name} is {limits!r:.80}: give TopicLimits."
                )

    def of(self, topic: str) -> TopicLimits:
        """Return a topic's limits in a producer's outbox, or those for each topic."""
        return self.topics.get(topic, self.each_topic)

    def max_body_of(self, topic: str) -> int:
        """Return how many bytes a body of a message for this topic may have."""
        return self.of(topic).max_body or self.max_body

    @property
    def limits_backlog(self) -> bool:
        """Tell whether a limit applies to messages that wait in the outbox."""
        every: list[TopicLimits | OutboxLimits] = [self, self.each_topic]
        return any(
            value is not None
            for each in [*every, *self.topics.values()]
            for value in (each.rows, each.bytes, each.age)
        )
