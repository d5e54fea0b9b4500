"""What an adapter must do: the ports, with their contract in the docstrings.

Every adapter passes the same suite, `tests/contracts`. A port belongs to one thread.
All of them raise `Unavailable` when the broker is away and `Refused` when it will
never do what was asked; neither text holds a password.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

Header = tuple[bytes, bytes]

# Where a batch of dead letters ends, however many were asked for.
BATCH_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Outbound:
    """One message on its way to a topic, which goes by the broker's own name."""

    topic: str
    body: bytes
    headers: tuple[Header, ...]


class OutcomeKind(StrEnum):
    """Sent: the broker has it. Refused: it never will. Unknown: nobody can tell."""

    SENT = "sent"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of one message: `detail` says why, `bookmark` is where it is now."""

    kind: OutcomeKind
    detail: str = ""
    bookmark: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """One message in a dead-letter queue, verbatim; `bookmark` is its place there.

    `size` counts body, header names and header values. `dequeue_count` is None where
    the broker does not tell it.
    """

    queue: str
    bookmark: str
    body: bytes
    headers: tuple[Header, ...]
    size: int
    dequeue_count: int | None = None


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


class Publisher(Protocol):
    """Puts messages on their topics."""

    def publish(self, messages: Sequence[Outbound]) -> list[Outcome]:
        """Send the messages pipelined and return one outcome for each, in order.

        A message leaves byte for byte as it is given. One that the broker refuses
        never keeps another from being sent. `sent` is claimed only on the broker's
        confirmation; what was not answered before the connection broke is `unknown`.
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
        again with everything that was not acknowledged.
        """

    def acknowledge(self, bookmarks: Sequence[str]) -> None:
        """Remove these from the queue; those already gone do no harm."""

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
        """Count the dead-letter queue; None where the broker cannot."""

    def close(self) -> None:
        """Give the connection back; twice is as good as once."""
