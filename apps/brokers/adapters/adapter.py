"""The interface that each package here offers for its kind of broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from apps.brokers.adapter_contract import (
    BrokerAdmin,
    Capabilities,
    DeadLetterReader,
    Ordering,
    Publisher,
    TopicAdmin,
)
from apps.brokers.address_policy import Target


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerSettings:
    """Address of a broker: `url` with its secret in the clear, and free options.

    A client connects by `target.dial`, which checks the address that it dials.
    """

    url: str = field(repr=False)
    options: Mapping[str, object] = field(default_factory=dict)
    target: Target = field(default_factory=Target)


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicSettings:
    """One topic, by the broker's own name; times in seconds.

    A `dead_letter_queue` of "" means the broker's own default. It may be the topic only
    where that `reads_itself`: its messages are requests, and no consumer's.
    """

    topic: str
    dead_letter_queue: str = ""
    max_dequeue_count: int = 5
    visibility_timeout: float = 60.0
    options: Mapping[str, object] = field(default_factory=dict)
    reads_itself: bool = False


class Adapter(Protocol):
    """One kind of broker; no call here connects yet.

    All of them raise `Invalid` for values that cannot work, naming the field.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Return what this kind of broker can do."""

    def publisher(self, broker: BrokerSettings) -> Publisher:
        """Make a publisher for all topics of a broker."""

    def dead_letter_reader(
        self, broker: BrokerSettings, topic: TopicSettings
    ) -> DeadLetterReader:
        """Make a reader of the topic's dead-letter queue."""

    def topic_admin(self, broker: BrokerSettings, topic: TopicSettings) -> TopicAdmin:
        """Make the admin that counts and inspects a topic at its broker."""

    def broker_admin(self, broker: BrokerSettings) -> BrokerAdmin:
        """Make the admin that tests a broker and lists its topics."""

    def queue_by_convention(self, topic: str) -> str:
        """Return the dead-letter queue that this kind gives each topic; "" for none.

        Raises `Invalid` where the convention allows no name for this topic.
        """

    def ordering(self, topic: str) -> Ordering:
        """Return a topic's ordering at its broker, which may differ from its kind's."""
