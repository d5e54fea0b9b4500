"""Stages: what the contract suite needs of a broker besides its ports.

A stage is one topic of one broker, with its other producers and consumers, and can take
the broker away. Each kind has its stage in a module of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Protocol

from apps.brokers.adapter_contract import (
    BrokerAdmin,
    Capabilities,
    DeadLetterReader,
    Header,
    Outbound,
    Publisher,
    TopicAdmin,
)
from apps.brokers.adapters.adapter import Adapter, BrokerSettings, TopicSettings

MAX_DEQUEUE_COUNT = 3
VISIBILITY_TIMEOUT = 60.0

Message = tuple[bytes, tuple[Header, ...]]


class TopicFixture(Protocol):
    @property
    def topic(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...

    def publisher(self) -> Publisher: ...
    def reader(self) -> DeadLetterReader: ...
    def admin(self) -> TopicAdmin: ...
    def broker_admin(self) -> BrokerAdmin: ...

    def put(self, topic: str, body: bytes, headers: Sequence[Header] = ()) -> None:
        """Add a message to the topic as any producer would."""

    def contents(self, topic: str) -> list[Message]:
        """Return the messages of a topic or a queue, oldest first; take none."""

    def consume(self, topic: str) -> list[Message]:
        """Take and settle all messages of the topic, as any consumer would."""

    def go_away(self) -> None: ...
    def come_back(self) -> None: ...

    def remove(self) -> None:
        """Remove from the shared server what would disturb the tests that follow."""


class RealStage(TopicFixture, Protocol):
    """A stage on a real server, which the whole product can use."""

    @property
    def broker(self) -> BrokerSettings: ...
    @property
    def settings(self) -> TopicSettings: ...

    def put_later(self, topic: str, body: bytes, *, seconds: int) -> None:
        """Publish with a delay, as far as the broker has one."""


class StreamStage(TopicFixture, Protocol):
    """A topic that several consumer groups read, and a clock."""

    def receive(self, *, consumer_group: str, client_name: str) -> list[str]:
        """Deliver all new messages to a consumer and return their bookmarks."""

    def receive_again(
        self, bookmark: str, *, consumer_group: str, client_name: str
    ) -> None:
        """Deliver pending messages once more."""

    def settle(self, bookmark: str, *, consumer_group: str) -> None: ...
    def advance(self, seconds: float) -> None: ...


class StagePorts(ABC):
    """The ports of a stage on a server, opened as the product opens them."""

    adapter: ClassVar[Adapter]

    @property
    @abstractmethod
    def broker(self) -> BrokerSettings: ...
    @property
    @abstractmethod
    def settings(self) -> TopicSettings: ...

    @property
    def capabilities(self) -> Capabilities:
        return self.adapter.capabilities

    def publisher(self) -> Publisher:
        return self.adapter.publisher(self.broker)

    def reader(self) -> DeadLetterReader:
        return self.adapter.dead_letter_reader(self.broker, self.settings)

    def admin(self) -> TopicAdmin:
        return self.adapter.topic_admin(self.broker, self.settings)

    def broker_admin(self) -> BrokerAdmin:
        return self.adapter.broker_admin(self.broker)

    def remove(self) -> None:  # noqa: B027 - on most servers nothing disturbs others
        """Leave what the stage made: its names are its own."""


def outbound(topic: str, number: int) -> Outbound:
    return Outbound(topic=topic, body=b"%d" % number, headers=())
