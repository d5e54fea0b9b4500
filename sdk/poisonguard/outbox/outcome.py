"""Results of publishing: what `send_or_put` and a sweeper learn from a broker's client.

An application passes a `Publish`: a function that gets messages in order and returns
one outcome per message in the same order. It raises `poisonguard.errors.Away` when none
of them can have been sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from poisonguard.outbox.message import OutboxMessage


class SendKind(StrEnum):
    """Result of one attempt to send a message.

    Sent: the broker has it, from this attempt or an earlier one. Refused: the broker
    will never take it. Unknown: the message left this process, and the broker may have
    it. Unsent: the broker does not have it, and may take it later.
    """

    SENT = "sent"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    UNSENT = "unsent"


@dataclass(frozen=True, kw_only=True, slots=True)
class SendOutcome:
    """Result for one message; `detail` says why it was not sent."""

    kind: SendKind
    detail: str = ""


Publish = Callable[[Sequence[OutboxMessage]], Sequence[SendOutcome]]
