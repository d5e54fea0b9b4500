"""The ports: what an adapter must do, with the contract in the docstrings.

Every adapter passes the same suite, `tests/contracts`. Where adapters differ, their
`Capabilities` say so, and the suite tests these as well. A port belongs to one thread.
All ports raise `Unavailable` when the broker is away, `Refused` when it will never do
what was asked, and `QueueMissing` when it has no such queue; no error text holds a
password.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

Header = tuple[bytes, bytes]

MESSAGE_ID = b"message_id"
# Limits of a topic that some brokers leave to their readers.
LIMITS = frozenset({"max_dequeue_count", "visibility_timeout"})
# Size at which a batch of dead letters ends, whatever its limit.
BATCH_BYTES = 64 * 2**20


class Headers(StrEnum):
    """Headers that a broker carries beside a body: none, text, or any bytes."""

    NONE = "none"
    TEXT = "text"
    BYTES = "bytes"


class Ordering(StrEnum):
    """Messages that stay in order: none, those of one key, or all of a topic."""

    NONE = "none"
    KEY = "key"
    TOPIC = "topic"


class Durability(StrEnum):
    """Where a message is stored when the broker confirms it."""

    FSYNCED = "fsynced"
    REPLICATED = "replicated"
    PAGE_CACHE = "page cache"


class Counting(StrEnum):
    """Source of a dead letter's dequeue count.

    The broker reports it; or it equals the topic's `max_dequeue_count`, since only that
    leads into the queue; or it is unknown.
    """

    BROKER = "broker"
    POLICY = "policy"
    NONE = "none"


def with_message_id_header(
    headers: Sequence[Header], message_id: bytes
) -> tuple[Header, ...]:
    """Add the header `message_id`, in place of others of that name."""
    others = (header for header in headers if header[0].lower() != MESSAGE_ID)
    return (*others, (MESSAGE_ID, message_id))


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What one kind of broker can do; sizes in bytes, times in seconds.

    `max_message` limits body and headers together where `counts_headers`, else the body
    alone. `max_text` is the limit of a body that is sent as plain text, where that is
    larger. `peeks`: looking at dead letters changes nothing, not even a count.
    `dedupe_window` and `delay` are 0 where the broker has none; only producers use a
    delay. `polling_interval`: the broker bills each look for dead letters, so an empty
    queue is asked less and less often, down to once in so many seconds unless the topic
    sets another interval; 0 where waiting costs nothing. `seq_bits`: the `seq` of a
    bookmark is a time in milliseconds above so many bits of a counter; None where it is
    no time. `with_message_id` adds a message's own id to its headers, where consumers
    expect it; it adds nothing where there are no headers. `reserved` names headers that
    Poisonweb never sends: they would steer the broker, or only the broker writes them.
    `limits` names the limits of a topic that Poisonweb applies; the broker sets the
    others, or has none.
    """

    max_message: int
    counts_headers: bool
    headers: Headers
    most_headers: int | None
    ordering: Ordering
    dedupe_window: float
    durability: Durability
    delay: float
    peeks: bool
    extends: bool
    counting: Counting
    dead_letters_itself: bool
    delivered: bool
    polling_interval: float = 0.0
    reserved: frozenset[bytes] = frozenset()
    seq_bits: int | None = None
    with_message_id: Callable[[Sequence[Header], bytes], tuple[Header, ...]] = (
        with_message_id_header
    )
    limits: frozenset[str] = LIMITS
    max_text: int = 0

    @property
    def largest_body(self) -> int:
        """Return the size beyond which the broker refuses a body, however it is sent.

        It may refuse smaller ones, too.
        """
        return max(self.max_message, self.max_text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outbound:
    """One message to send to a topic, which has the broker's own name.

    `dedupe` is the same for each attempt of one send, and differs between sends. `key`
    is shared by the messages that keep their order. `is_by_producer`: it was no message
    of a broker yet, so a header that a consumer would take for another part is refused.
    """

    topic: str
    body: bytes
    headers: tuple[Header, ...]
    dedupe: str = ""
    key: str = ""
    is_by_producer: bool = False


class OutcomeKind(StrEnum):
    """Result of one attempt to send a message.

    Sent: the broker has it. Refused: the broker will never take it. Unknown: the
    message left this process, and the broker may have it. Unsent: the broker does not
    have it from this attempt, and may take it later. Duplicate: the broker already had
    this very send.
    """

    SENT = "sent"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    UNSENT = "unsent"
    DUPLICATE = "duplicate"


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishOutcome:
    """Result for one message: `detail` says why, `bookmark` is its new place."""

    kind: OutcomeKind
    detail: str = ""
    bookmark: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """One message in a dead-letter queue, verbatim; `bookmark` is its place there.

    `bookmark` is "" where the broker gives a message no lasting name: then `receipt`
    alone names this delivery, and `redelivered` tells that we received it before.
    `size` counts body, header names and header values. `dequeue_count` is None where
    the broker does not report it. `enqueued_at` is when it came into this queue, if
    known.
    """

    queue: str
    bookmark: str
    body: bytes
    headers: tuple[Header, ...]
    size: int
    dequeue_count: int | None = None
    receipt: str = ""
    redelivered: bool = False
    enqueued_at: datetime | None = None

    @property
    def handle(self) -> str:
        """Return the dead letter's name to acknowledge, extend or release it by."""
        return self.receipt or self.bookmark


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerPosition:
    """Position of a consumer group, as the broker itself reports it.

    `seq` and `head_seq` order bookmarks (0 .. 2^63-2). `lag` is None where the broker
    cannot count the unread messages. `pending` counts messages handed out and not
    settled.
    """

    consumer_group: str
    bookmark: str
    seq: int
    head_bookmark: str
    head_seq: int
    lag: int | None
    pending: int
    oldest_pending_seconds: float | None
    clients: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundTopic:
    """A topic that discovery found, by its own name, with its dead-letter queue.

    `dead_letter_queue` is "" where it has none; the depths are None where the broker
    does not count.
    """

    name: str
    depth: int | None
    dead_letter_queue: str
    dead_letters: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivered:
    """Number of messages of a topic that the broker delivered up to a moment.

    The number only grows, but starts again with the broker or with its queue; `since`
    names the start, where the broker reports it.
    """

    total: int
    at: datetime
    since: str = ""


class Publisher(Protocol):
    """Put messages on their topics."""

    def publish(self, messages: Sequence[Outbound]) -> list[PublishOutcome]:
        """Send messages to the broker pipelined; return one outcome for each, in order.

        A message leaves byte for byte as it is given, less the reserved headers. A
        message that the broker refuses never stops another: where it would break the
        connection, the window is split until that message is alone. An outcome is
        `sent` only on the broker's confirmation, `unknown` where the connection broke
        before the broker answered, and `unsent` where the message never left or the
        broker turned it away for now. Raises `Unavailable` only when none of the
        messages can have been sent.
        """

    def close(self) -> None:
        """Close the connections of a broker's publisher; a second call is harmless."""


class DeadLetterReader(Protocol):
    """Empty one dead-letter queue for its only lane, which holds the lock."""

    def read(self, *, limit: int, wait: float) -> list[DeadLetter]:
        """Return the next dead letters; wait at most `wait` seconds for the first.

        Returns at most `limit`, and fewer large ones: a batch stays near 64 MB. A
        reader returns each dead letter once, so an unacknowledged one blocks nothing. A
        new reader, or this one after it raised `Unavailable`, starts again with all
        that is unacknowledged; where a visibility timeout hides these, after that.
        """

    def peek(self, *, limit: int) -> list[DeadLetter]:
        """Look at the first dead letters without changing anything, oldest first.

        Empty where the broker cannot (`Capabilities.peeks`).
        """

    def acknowledge(self, handles: Sequence[str]) -> None:
        """Remove these dead letters from the queue; ignore those already gone."""

    def extend(self, handles: Sequence[str]) -> None:
        """Hide these dead letters from other readers for another visibility timeout."""

    def release(self, handles: Sequence[str]) -> None:
        """Return these dead letters to their queue at once, unchanged."""

    def dead_letter_exhausted(self) -> int:
        """Move the lane's exhausted messages to their dead-letter queue; count them.

        These were handed out `max_dequeue_count` times and not settled. A message moves
        to the dead-letter queue only when no consumer settled or took it for the
        visibility timeout; the same step settles it for its consumer group. One call
        looks at a bounded number: call it again. Returns the number of moved messages:
        0 where the broker does this itself.
        """

    def close(self) -> None:
        """Close the reader's connection; calling it twice does no harm."""


class TopicAdmin(Protocol):
    """Look at one topic without touching it."""

    def consumers(self) -> list[ConsumerPosition]:
        """Return the position of every consumer group; [] while there is no topic."""

    def depth(self) -> int | None:
        """Count the dead-letter queue; None where the broker cannot.

        Raises `QueueMissing` where an operator has to create the queue, and
        `QueueExpected` where the first dead letter creates it.
        """

    def oldest_at(self) -> datetime | None:
        """Return when the oldest dead letter came; None if empty or unknown."""

    def delivered(self) -> Delivered | None:
        """Count the deliveries to consumers; None where the broker does not."""

    def close(self) -> None:
        """Close the connection that inspects a topic; calling it twice is harmless."""


class BrokerAdmin(Protocol):
    """Look at a broker as a whole."""

    def ping(self) -> str:
        """Connect with these credentials and describe the broker in a few words.

        Raises `Refused` where the broker answers, but a configured part of it does not.
        """

    def discover(self) -> list[FoundTopic]:
        """List the broker's topics by name, each with its dead-letter queue if any."""

    def close(self) -> None:
        """Close the connection that tests a broker; calling it twice is harmless."""
