"""What an adapter must do: the ports, with their contract in the docstrings.

Every adapter passes the same suite, `tests/contracts`; where they differ, their
`Capabilities` say so, and each entry of these is tested, too. A port belongs to one
thread. All of them raise `Unavailable` when the broker is away and `Refused` when it
will never do what was asked, `QueueMissing` for want of a queue; no text holds a
password.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

Header = tuple[bytes, bytes]

# A topic's limits, which some brokers leave to who reads from them.
LIMITS = frozenset({"max_dequeue_count", "visibility_timeout"})
# Where a batch of dead letters ends, however many were asked for.
BATCH_BYTES = 64 * 2**20


class Headers(StrEnum):
    """What a broker carries beside a body: nothing, text, or any bytes."""

    NONE = "none"
    TEXT = "text"
    BYTES = "bytes"


class Ordering(StrEnum):
    """What stays in order: nothing, the messages of one key, or all of a topic."""

    NONE = "none"
    KEY = "key"
    TOPIC = "topic"


class Durability(StrEnum):
    """What a confirmation is worth: where the message is when it comes."""

    FSYNCED = "fsynced"
    REPLICATED = "replicated"
    PAGE_CACHE = "page cache"


class Counting(StrEnum):
    """Who knows how often a dead letter was handed out before it became one.

    The broker tells it; or nobody does, but only the topic's `max_dequeue_count` leads
    into the queue; or nobody does at all.
    """

    BROKER = "broker"
    POLICY = "policy"
    NONE = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What one kind of broker can do; sizes in bytes, times in seconds.

    `max_message` bounds body and headers together where `counts_headers`, else the
    body alone. `peeks` tells that looking at dead letters changes nothing, not even a
    count. `dedupe_window` and `delay` are 0 where there is none; a delay is a
    producer's to ask for, we never do. `polling_interval` tells that each look for dead
    letters is a request that somebody pays for: where there are none it is made less
    and less often, down to one in so many seconds unless a topic says otherwise; 0
    where waiting costs nothing. `seq_bits` tells that the `seq` of a bookmark is a time
    in milliseconds, with so many bits below it that only count; None where it is no
    time. `reserved` names the headers that are never sent, whoever asks: they would
    steer the broker, or are its own to write. `limits` names those of a topic's limits
    that are ours to go by; the others are set at the broker, or there are none.
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
    limits: frozenset[str] = LIMITS


@dataclass(frozen=True, kw_only=True, slots=True)
class Outbound:
    """One message on its way to a topic, which goes by the broker's own name.

    `dedupe` is the same whenever this very send is tried again, and no other's. `key`
    is what it shares with the messages among which it has an order.
    """

    topic: str
    body: bytes
    headers: tuple[Header, ...]
    dedupe: str = ""
    key: str = ""


class OutcomeKind(StrEnum):
    """What is known of one message after one attempt to send it.

    Sent: the broker has it. Refused: the broker will never take it. Unknown: it left
    this process, and the broker may have it or not. Unsent: the broker does not have
    it from this attempt, and may take it later. Duplicate: the broker says that it had
    this very send before.
    """

    SENT = "sent"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    UNSENT = "unsent"
    DUPLICATE = "duplicate"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of one message: `detail` says why, `bookmark` is where it is now."""

    kind: OutcomeKind
    detail: str = ""
    bookmark: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """One message in a dead-letter queue, verbatim; `bookmark` is its place there.

    `bookmark` is "" where the broker gives a message no name that lasts: then
    `receipt` alone names this delivery, and `redelivered` tells that it was handed to
    us before. `size` counts body, header names and header values. `dequeue_count` is
    None where the broker does not tell it. `enqueued_at` is when it came into this
    queue, where that is known.
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
        """What to acknowledge, extend or release it by."""
        return self.receipt or self.bookmark


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerPosition:
    """How far a consumer group has read, as the broker itself knows it.

    `seq` and `head_seq` order bookmarks (0 .. 2^63-2). `lag` is None where the broker
    cannot count what is left. `pending` were handed out and are not settled.
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
    """A topic that the broker has, by its own name, with its dead-letter queue.

    `dead_letter_queue` is "" where it has none; the depths are None where the broker
    does not count.
    """

    name: str
    depth: int | None
    dead_letter_queue: str
    dead_letters: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivered:
    """How many messages of a topic the broker ever delivered, as of a moment.

    The number only grows, but begins again with the broker or with its queue; `since`
    names the beginning, where the broker tells it.
    """

    total: int
    at: datetime
    since: str = ""


class Publisher(Protocol):
    """Puts messages on their topics."""

    def publish(self, messages: Sequence[Outbound]) -> list[Outcome]:
        """Send the messages pipelined and return one outcome for each, in order.

        A message leaves byte for byte as it is given, less the reserved headers. One
        that the broker refuses never keeps another from being sent: where it would
        break the connection, the window is split until it stands alone. `sent` is
        claimed only on the broker's confirmation; what was handed over and not
        answered before the connection broke is `unknown`; what was never handed over,
        or what the broker turned away for now, is `unsent`.
        Raises `Unavailable` only when none of the messages can have been sent.
        """

    def close(self) -> None:
        """Give the connection back; twice is as good as once."""


class DeadLetterReader(Protocol):
    """Empties one dead-letter queue for its only lane, which holds the lock."""

    def read(self, *, limit: int, wait: float) -> list[DeadLetter]:
        """Return the next dead letters, waiting for the first at most `wait` seconds.

        At most `limit`, and fewer when they are large: a batch stays near 64 MB. A
        reader hands each out once, so one left unacknowledged is held and blocks
        nothing. A new reader, or this one after it raised `Unavailable`, begins
        again with everything that was not acknowledged, where a visibility timeout
        hides it, after that.
        """

    def peek(self, *, limit: int) -> list[DeadLetter]:
        """Look at the first dead letters without changing anything, oldest first.

        Empty where the broker cannot (`Capabilities.peeks`).
        """

    def acknowledge(self, handles: Sequence[str]) -> None:
        """Remove these from the queue; those already gone do no harm."""

    def extend(self, handles: Sequence[str]) -> None:
        """Keep these from being handed to anybody for another visibility timeout."""

    def release(self, handles: Sequence[str]) -> None:
        """Give these back to their queue at once, unchanged, for whoever reads next."""

    def dead_letter_exhausted(self) -> int:
        """Move what was handed out `max_dequeue_count` times and not settled.

        Only when nobody has settled or taken a message for the visibility timeout
        does it go to the dead-letter queue, settled for its consumer group in the
        same step. One call looks at a bounded number; call it again. Returns how many
        were moved: 0 where the broker does this itself.
        """

    def close(self) -> None:
        """Give the connection back; twice is as good as once."""


class TopicAdmin(Protocol):
    """Looks at one topic without touching it."""

    def consumers(self) -> list[ConsumerPosition]:
        """Return every consumer group's position; none when there is no topic yet."""

    def depth(self) -> int | None:
        """Count the dead-letter queue; None where the broker cannot.

        Raises `QueueMissing` where somebody has to make it, and nobody did, and
        `QueueExpected` where it is made with the first dead letter.
        """

    def oldest_at(self) -> datetime | None:
        """Tell when the oldest dead letter came; None if there is none, or unknown."""

    def delivered(self) -> Delivered | None:
        """Count what was delivered to consumers; None where the broker does not."""

    def close(self) -> None:
        """Give the connection back; twice is as good as once."""


class BrokerAdmin(Protocol):
    """Looks at a broker as a whole."""

    def ping(self) -> str:
        """Reach it with these credentials, and say what it is, in a few words.

        Raises `Refused` where it is there, and a part that it was told to have is not.
        """

    def discover(self) -> list[FoundTopic]:
        """List its topics by name; dead-letter queues stand only beside theirs."""

    def close(self) -> None:
        """Give the connection back; twice is as good as once."""
