"""A broker in memory for tests, under the same contract as the real ones.

Its time passes only by `advance`, and tests tell it how to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Condition

from apps.brokers.adapter_contract import (
    BATCH_BYTES,
    Capabilities,
    ConsumerPosition,
    Counting,
    DeadLetter,
    Delivered,
    Durability,
    FoundTopic,
    Headers,
    Ordering,
    Outbound,
    OutcomeKind,
    PublishOutcome,
)
from apps.brokers.failure_headers import own_documented_headers as vocabulary
from apps.core.errors import Unavailable

SUFFIX = "-poison"
START = datetime(2026, 1, 1, tzinfo=UTC)


CAPABILITIES = Capabilities(
    max_message=2**31,
    counts_headers=True,
    headers=Headers.BYTES,
    most_headers=None,
    ordering=Ordering.TOPIC,
    dedupe_window=0,
    durability=Durability.PAGE_CACHE,
    delay=0,
    peeks=True,
    extends=False,
    counting=Counting.BROKER,
    dead_letters_itself=False,
    delivered=True,
)


@dataclass(slots=True)
class _HandedOut:
    client_name: str
    at: datetime
    dequeue_count: int


@dataclass(slots=True)
class _Group:
    position: int = 0
    pending: dict[int, _HandedOut] = field(default_factory=dict)


@dataclass(slots=True)
class _Topic:
    """Messages by their number, which is their bookmark; the first one is 1."""

    messages: dict[int, Outbound] = field(default_factory=dict)
    groups: dict[str, _Group] = field(default_factory=dict)
    head: int = 0

    def add(self, message: Outbound) -> int:
        """Append a message to a topic of the memory broker; return its number."""
        self.head += 1
        self.messages[self.head] = message
        return self.head


class MemoryBroker:
    """The topics, the consumers that read them, and the failures to come."""

    def __init__(self) -> None:
        self.now = START
        self.changed = Condition()
        self.refusal: Callable[[Outbound], str] = lambda _: ""
        self.answers_left: int | None = None
        self.keeps_unanswered = False
        self._away = False
        self._topics: dict[str, _Topic] = {}

    # --- what a test arranges

    def refuse(self, why: Callable[[Outbound], str]) -> None:
        """Let the memory broker refuse each message for which `why` returns a text.

        It does so for messages that are published from now on.
        """
        self.refusal = why

    def go_away(self) -> None:
        """Take the memory broker offline: from now on each call raises Unavailable."""
        self._away = True

    def come_back(self) -> None:
        """Bring the memory broker online: it answers and confirms messages again."""
        self._away, self.answers_left = False, None

    def stop_answering(self, *, after: int, keep: bool) -> None:
        """Let the memory broker confirm `after` more messages, and answer no others.

        `keep`: the others are stored all the same, otherwise lost.
        """
        self.answers_left, self.keeps_unanswered = after, keep

    def advance(self, seconds: float) -> None:
        """Move the memory broker's clock forward."""
        self.now += timedelta(seconds=seconds)

    def receive(
        self, topic: str, *, consumer_group: str, client_name: str
    ) -> list[tuple[str, Outbound]]:
        """Hand a consumer the new messages of a topic of the memory broker.

        The consumer settles them or does not.
        """
        state = self.topic(topic)
        group = state.groups.setdefault(consumer_group, _Group())
        new_messages = [(n, m) for n, m in state.messages.items() if n > group.position]
        group.position = state.head
        for number, _ in new_messages:
            group.pending[number] = _HandedOut(client_name, self.now, 1)
        return [(str(number), message) for number, message in new_messages]

    def receive_again(
        self, topic: str, bookmark: str, *, consumer_group: str, client_name: str
    ) -> None:
        """Hand out a message of the memory broker again, as to a restarted consumer."""
        pending = self.topic(topic).groups[consumer_group].pending
        count = pending[int(bookmark)].dequeue_count + 1
        pending[int(bookmark)] = _HandedOut(client_name, self.now, count)

    def settle(self, topic: str, bookmark: str, *, consumer_group: str) -> None:
        """Settle at the memory broker a message that a consumer group was handed."""
        del self.topic(topic).groups[consumer_group].pending[int(bookmark)]

    # --- what a test looks at

    def published(self, topic: str) -> list[Outbound]:
        """Return the messages of a memory broker's topic or queue, oldest first."""
        return list(self.topic(topic).messages.values())

    # --- the ports

    def publisher(self) -> MemoryPublisher:
        """Return a publisher to this memory broker."""
        return MemoryPublisher(self)

    def reader(
        self,
        topic: str,
        *,
        dead_letter_queue: str = "",
        max_dequeue_count: int = 5,
        visibility_timeout: float = 60.0,
    ) -> MemoryDeadLetterReader:
        """Return a reader of the memory broker's dead-letter queue of a topic."""
        return MemoryDeadLetterReader(
            self,
            topic=topic,
            queue=dead_letter_queue or topic + SUFFIX,
            max_dequeue_count=max_dequeue_count,
            visibility_timeout=timedelta(seconds=visibility_timeout),
        )

    def admin(self, topic: str, *, dead_letter_queue: str = "") -> MemoryTopicAdmin:
        """Return the memory broker's admin of a topic and its dead-letter queue."""
        queue = dead_letter_queue or topic + SUFFIX
        return MemoryTopicAdmin(self, topic=topic, queue=queue)

    def ping(self) -> str:
        """Describe the memory broker; raise Unavailable while it is away."""
        self.reach()
        return "a broker in memory"

    def discover(self) -> list[FoundTopic]:
        """List the memory broker's topics, each with its dead-letter queue."""
        self.reach()
        depths = {name: len(self._topics[name].messages) for name in self._topics}
        return [
            FoundTopic(
                name=name,
                depth=depth,
                dead_letter_queue=name + SUFFIX if name + SUFFIX in depths else "",
                dead_letters=depths.get(name + SUFFIX),
            )
            for name, depth in sorted(depths.items())
            if name.removesuffix(SUFFIX) not in depths or not name.endswith(SUFFIX)
        ]

    def close(self) -> None:
        """Do nothing: the broker in memory has no connection."""

    def topic(self, name: str) -> _Topic:
        """Return a topic or queue of the memory broker, created if missing."""
        return self._topics.setdefault(name, _Topic())

    def reach(self) -> None:
        """Raise Unavailable while the memory broker is away."""
        if self._away:
            raise Unavailable("The broker in memory is away.")


class MemoryPublisher:
    """Publish to a broker in memory, its own if it is given none."""

    def __init__(self, broker: MemoryBroker | None = None) -> None:
        self.broker = broker or MemoryBroker()

    def publish(self, messages: Sequence[Outbound]) -> list[PublishOutcome]:
        """Append messages to the memory broker's topics; return outcomes in order."""
        with self.broker.changed:
            self.broker.reach()
            outcomes = [self._publish(message) for message in messages]
            self.broker.changed.notify_all()
        return outcomes

    def close(self) -> None:
        """Do nothing: the broker in memory has no connection."""

    def _publish(self, message: Outbound) -> PublishOutcome:
        """Append a message at the memory broker, refuse it or leave it unanswered.

        Returns the outcome.
        """
        broker = self.broker
        if broker.answers_left == 0:
            if broker.keeps_unanswered:
                broker.topic(message.topic).add(message)
            return PublishOutcome(
                kind=OutcomeKind.UNKNOWN, detail="The connection was lost."
            )
        if broker.answers_left is not None:
            broker.answers_left -= 1
        if reason := broker.refusal(message):
            return PublishOutcome(kind=OutcomeKind.REFUSED, detail=reason)
        bookmark = broker.topic(message.topic).add(message)
        return PublishOutcome(kind=OutcomeKind.SENT, bookmark=str(bookmark))


class MemoryDeadLetterReader:
    """Read one dead-letter queue of a broker in memory."""

    def __init__(
        self,
        broker: MemoryBroker,
        *,
        topic: str,
        queue: str,
        max_dequeue_count: int,
        visibility_timeout: timedelta,
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._queue = queue
        self._max_dequeue_count = max_dequeue_count
        self._visibility_timeout = visibility_timeout
        self._cursor = 0

    def read(self, *, limit: int, wait: float) -> list[DeadLetter]:
        """Return the memory broker's next dead letters.

        Waits at most `wait` seconds for the first.
        """
        with self._broker.changed:
            try:
                self._broker.reach()
            except Unavailable:
                self._cursor = 0
                raise
            if not self._unread():
                self._broker.changed.wait(wait)
            return self._read_batch(limit)

    def peek(self, *, limit: int) -> list[DeadLetter]:
        """Return the memory broker's first dead letters; change nothing."""
        self._broker.reach()
        numbers = list(self._broker.topic(self._queue).messages)[:limit]
        return [self._letter(number) for number in numbers]

    def extend(self, handles: Sequence[str]) -> None:
        """Do nothing: the memory broker has one reader. Raise Unavailable if away."""
        self._broker.reach()

    def release(self, handles: Sequence[str]) -> None:
        """Do nothing: letters stay in the memory broker. Raise Unavailable if away."""
        self._broker.reach()

    def acknowledge(self, handles: Sequence[str]) -> None:
        """Remove these dead letters from their queue at the memory broker."""
        self._broker.reach()
        for bookmark in handles:
            self._broker.topic(self._queue).messages.pop(int(bookmark), None)

    def dead_letter_exhausted(self) -> int:
        """Move the memory broker's exhausted messages to the dead-letter queue.

        Returns how many.
        """
        self._broker.reach()
        groups = self._broker.topic(self._topic).groups
        return sum(self._dead_letter(name, group) for name, group in groups.items())

    def close(self) -> None:
        """Do nothing: the broker in memory has no connection."""

    def _unread(self) -> list[int]:
        """List the numbers of the memory broker's dead letters not yet read."""
        messages = self._broker.topic(self._queue).messages
        return [number for number in messages if number > self._cursor]

    def _read_batch(self, limit: int) -> list[DeadLetter]:
        """Return the memory broker's next dead letters; move the cursor behind them."""
        letters: list[DeadLetter] = []
        for number in self._unread()[:limit]:
            letters.append(self._letter(number))
            self._cursor = number
            if sum(letter.size for letter in letters) >= BATCH_BYTES:
                break
        return letters

    def _letter(self, number: int) -> DeadLetter:
        """Build the dead letter that has this number at the memory broker."""
        message = self._broker.topic(self._queue).messages[number]
        parts = (part for header in message.headers for part in header)
        return DeadLetter(
            queue=self._queue,
            bookmark=str(number),
            body=message.body,
            headers=message.headers,
            size=len(message.body) + sum(map(len, parts)),
        )

    def _dead_letter(self, name: str, group: _Group) -> int:
        """Move exhausted messages of a memory broker's group to the dead-letter queue.

        Returns how many.
        """
        overdue_since = self._broker.now - self._visibility_timeout
        exhausted = [
            number
            for number, handed_out in group.pending.items()
            if handed_out.at <= overdue_since
            and handed_out.dequeue_count >= self._max_dequeue_count
        ]
        for number in exhausted:
            self._move(number, name, group.pending.pop(number))
        return len(exhausted)

    def _move(self, number: int, group: str, handed_out: _HandedOut) -> None:
        """Append an exhausted message to the memory broker's dead-letter queue.

        Its story is in its headers.
        """
        message = self._broker.topic(self._topic).messages[number]
        story = vocabulary.headers_of_exhausted(
            bookmark=str(number).encode(),
            consumer_group=group.encode(),
            client_name=handed_out.client_name.encode(),
            attempts=handed_out.dequeue_count,
            failed_at=handed_out.at,
        )
        moved = Outbound(
            topic=self._queue, body=message.body, headers=(*message.headers, *story)
        )
        self._broker.topic(self._queue).add(moved)


class MemoryTopicAdmin:
    """Look at one topic of a broker in memory."""

    def __init__(self, broker: MemoryBroker, *, topic: str, queue: str) -> None:
        self._broker = broker
        self._topic = topic
        self._queue = queue

    def consumers(self) -> list[ConsumerPosition]:
        """Return the position of each consumer group of a memory broker's topic."""
        self._broker.reach()
        topic = self._broker.topic(self._topic)
        return [
            self._position(name, group, head=topic.head)
            for name, group in topic.groups.items()
        ]

    def depth(self) -> int | None:
        """Count the messages of the memory broker's dead-letter queue."""
        self._broker.reach()
        return len(self._broker.topic(self._queue).messages)

    def oldest_at(self) -> datetime | None:
        """Return None, the oldest letter's time: the memory broker stores no times."""
        self._broker.reach()
        return None

    def delivered(self) -> Delivered | None:
        """Count the deliveries of a memory broker's topic to all groups."""
        self._broker.reach()
        groups = self._broker.topic(self._topic).groups.values()
        total = sum(group.position for group in groups)
        return Delivered(total=total, at=self._broker.now)

    def close(self) -> None:
        """Do nothing: the broker in memory has no connection."""

    def _position(self, name: str, group: _Group, *, head: int) -> ConsumerPosition:
        """Build the position of a consumer group at the memory broker."""
        handed_out = group.pending.values()
        oldest = min((one.at for one in handed_out), default=None)
        return ConsumerPosition(
            consumer_group=name,
            bookmark=str(group.position),
            seq=group.position,
            head_bookmark=str(head),
            head_seq=head,
            lag=head - group.position,
            pending=len(group.pending),
            oldest_pending_seconds=(
                (self._broker.now - oldest).total_seconds() if oldest else None
            ),
            clients=len({one.client_name for one in handed_out}),
        )
