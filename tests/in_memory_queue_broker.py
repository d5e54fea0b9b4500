"""A broker of queues in memory for tests of lanes.

It names its messages only if `names`. When a reader is cut off, the messages that it
held return to their queue in the old order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from types import ModuleType

import pytest

from apps.brokers import adapters
from apps.brokers.adapter_contract import (
    Capabilities,
    ConsumerPosition,
    DeadLetter,
    Delivered,
    FoundTopic,
    Header,
    Ordering,
    Outbound,
    OutcomeKind,
    PublishOutcome,
)
from apps.brokers.adapters import BrokerKind
from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.adapters.memory import CAPABILITIES
from apps.brokers.errors import QueueExpected, QueueMissing
from apps.core.errors import Invalid, Unavailable

KIND = "queues"
SENT = PublishOutcome(kind=OutcomeKind.SENT)


@dataclass(slots=True)
class Message:
    number: int
    body: bytes
    headers: tuple[Header, ...]
    redelivered: bool = False


@dataclass(slots=True)
class Queues:
    """The broker and its adapter: queues by name, and the failures to come.

    `answer` decides the outcome of a published message; a SENT or DUPLICATE one is put
    into its queue.
    """

    capabilities: Capabilities = CAPABILITIES
    names: bool = True
    away: bool = False
    missing: bool = False
    expects_queues: bool = False
    convention: str = ""
    delivered: Delivered | None = None
    consumers: list[ConsumerPosition] = field(default_factory=list)
    answer: Callable[[Outbound], PublishOutcome] = lambda _: SENT
    queues: dict[str, list[Message]] = field(default_factory=dict)
    existing: set[str] = field(default_factory=set)
    readers: list[Reader] = field(default_factory=list)
    published: list[Outbound] = field(default_factory=list)
    reads: int = 0
    call_count: int = 0
    extended: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    # --- what a test arranges and looks at

    def put(self, queue: str, body: bytes, headers: Sequence[Header] = ()) -> str:
        message = Message(next(self.numbers), body, tuple(headers))
        self.queues.setdefault(queue, []).append(message)
        self.existing.add(queue)
        return str(message.number)

    def contents(self, queue: str) -> list[tuple[bytes, tuple[Header, ...]]]:
        return [(m.body, m.headers) for m in self.queues.get(queue, [])]

    def cut(self) -> None:
        """Cut off every reader of the queues, as the end of its process would."""
        for reader in list(self.readers):
            reader.close()

    def with_(self, **changes: object) -> Queues:
        self.capabilities = replace(self.capabilities, **changes)  # type: ignore[arg-type]
        return self

    # --- the adapter

    def publisher(self, broker: BrokerSettings) -> Publisher:
        return Publisher(self)

    def dead_letter_reader(
        self, broker: BrokerSettings, topic: TopicSettings
    ) -> Reader:
        return Reader(self, topic.dead_letter_queue)

    def topic_admin(self, broker: BrokerSettings, topic: TopicSettings) -> Admin:
        return Admin(self, topic.dead_letter_queue)

    def broker_admin(self, broker: BrokerSettings) -> Admin:
        return Admin(self, "")

    def queue_by_convention(self, topic: str) -> str:
        if not self.convention:
            return ""
        if topic.endswith(self.convention):
            raise Invalid("dead_letter_queue", f"{topic} looks like one itself.")
        return topic + self.convention

    def ordering(self, topic: str) -> Ordering:
        return self.capabilities.ordering

    def reach(self) -> None:
        self.call_count += 1
        if self.away:
            raise Unavailable("The queues in memory are away.")
        if self.missing:
            raise QueueMissing("In memory there is no queue mail-dead.")


@dataclass(slots=True)
class Publisher:
    broker: Queues

    def publish(self, messages: Sequence[Outbound]) -> list[PublishOutcome]:
        self.broker.reach()
        return [self._publish(message) for message in messages]

    def _publish(self, message: Outbound) -> PublishOutcome:
        outcome = self.broker.answer(message)
        if outcome.kind not in {OutcomeKind.SENT, OutcomeKind.DUPLICATE}:
            return outcome
        self.broker.published.append(message)
        number = self.broker.put(message.topic, message.body, message.headers)
        return replace(outcome, bookmark=number if self.broker.names else "")

    def close(self) -> None:
        """Do nothing: the broker in memory has no connection."""


@dataclass(slots=True)
class Reader:
    broker: Queues
    queue: str
    in_hand: dict[str, Message] = field(default_factory=dict)
    receipts: Iterator[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.broker.readers.append(self)

    def read(self, *, limit: int, wait: float) -> list[DeadLetter]:
        self.broker.reach()
        self.broker.reads += 1
        mine = self.in_hand.values()
        others = [m for m in self._messages() if all(m is not one for one in mine)]
        return [self._letter(message) for message in others[:limit]]

    def peek(self, *, limit: int) -> list[DeadLetter]:
        self.broker.reach()
        return [self._dead_letter(message, "") for message in self._messages()[:limit]]

    def acknowledge(self, handles: Sequence[str]) -> None:
        self.broker.reach()
        for handle in handles:
            message = self.in_hand.pop(handle, None)
            if message is not None:
                self._messages().remove(message)

    def extend(self, handles: Sequence[str]) -> None:
        self.broker.extended.extend(handles)

    def release(self, handles: Sequence[str]) -> None:
        for handle in handles:
            self.in_hand.pop(handle).redelivered = True

    def dead_letter_exhausted(self) -> int:
        self.broker.reach()
        return 0

    def close(self) -> None:
        for message in self.in_hand.values():
            message.redelivered = True
        self.in_hand.clear()
        if self in self.broker.readers:
            self.broker.readers.remove(self)

    def _messages(self) -> list[Message]:
        return self.broker.queues.setdefault(self.queue, [])

    def _letter(self, message: Message) -> DeadLetter:
        receipt = f"r{next(self.receipts)}"
        self.in_hand[receipt] = message
        return self._dead_letter(message, receipt)

    def _dead_letter(self, message: Message, receipt: str) -> DeadLetter:
        return DeadLetter(
            queue=self.queue,
            bookmark=str(message.number) if self.broker.names else "",
            body=message.body,
            headers=message.headers,
            size=len(message.body),
            receipt=receipt,
            redelivered=message.redelivered,
        )


@dataclass(slots=True)
class Admin:
    broker: Queues
    queue: str

    def consumers(self) -> list[ConsumerPosition]:
        self.broker.reach()
        return self.broker.consumers

    def depth(self) -> int | None:
        if self.broker.expects_queues and self.queue not in self.broker.existing:
            raise QueueExpected(f"There is no queue {self.queue} yet.")
        return len(self.broker.queues.get(self.queue, []))

    def oldest_at(self) -> datetime | None:
        return None

    def delivered(self) -> Delivered | None:
        return self.broker.delivered

    def ping(self) -> str:
        return "queues in memory"

    def discover(self) -> list[FoundTopic]:
        return []

    def close(self) -> None:
        """Do nothing: the broker in memory has no connection."""


@contextmanager
def adapted(broker: Queues) -> Iterator[None]:
    """Make the broker in memory the kind `queues`, as if it were an adapter."""
    module = ModuleType(f"{adapters.__name__}.{KIND}.adapter")
    module.ADAPTER = broker  # type: ignore[attr-defined]
    kind = BrokerKind(name=KIND, title="Queues", client="redis", url="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(adapters.KINDS, KIND, kind)
        patch.setitem(sys.modules, module.__name__, module)
        adapters.adapter.cache_clear()
        yield
    adapters.adapter.cache_clear()
