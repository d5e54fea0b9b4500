"""Requests to deliver, and what calling a back end with them gave, as values."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from apps.brokers.adapter_contract import Header
from apps.redelivery.endpoint_and_delivery_choices import AttemptOutcome
from apps.redelivery.retry_plan import retry_after_seconds

# How much of an answer its attempt keeps, in bytes.
KEPT_ANSWER = 64 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class CallResult:
    """The result of one attempt: an answer, or the reason why none came.

    `status` is None without an answer. `body` has at most KEPT_ANSWER bytes; the answer
    was longer where it `is_cut`.
    """

    outcome: AttemptOutcome
    status: int | None = None
    detail: str = ""
    headers: Sequence[Header] = ()
    body: bytes = b""
    is_cut: bool = False

    def retry_after(self, *, now: datetime) -> float | None:
        """Return the seconds that the back end asked to wait; None if it did not."""
        for name, value in self.headers:
            if name.lower() == b"retry-after":
                return retry_after_seconds(value, now=now)
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstTry:
    """An attempt that was made before its delivery was stored."""

    begun_at: datetime
    ended_at: datetime
    result: CallResult


@dataclass(frozen=True, kw_only=True, slots=True)
class NewDelivery:
    """A request to store; `path` is raw, with its query, below the endpoint.

    `dedupe` identifies a message that is requeued, or comes from a topic: it is stored
    once. `is_delayed_by` is how many seconds a delivery without a first try waits.
    """

    id: uuid.UUID
    method: str
    path: bytes
    headers: Sequence[Header]
    body: bytes
    caller: str
    idempotency_key: str
    is_repeatable: bool
    order_key: bytes | None = None
    dedupe: str | None = None
    is_delayed_by: float = 0.0
    first_try: FirstTry | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimedDelivery:
    """A delivery that a sender owns until `claimed_until`; `attempt` is its number.

    With the success of one that `is_requeued` more than the delivery changes.
    """

    id: uuid.UUID
    claim: uuid.UUID
    attempt: int
    method: str
    path: bytes
    headers: tuple[Header, ...]
    body: bytes
    idempotency_key: str
    begun_at: datetime
    claimed_until: datetime
    is_requeued: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedAttempt:
    """What a sender reports of a claimed delivery.

    Its call began at `begun_at`, which may be later than its claim.
    """

    delivery: uuid.UUID
    claim: uuid.UUID
    attempt: int
    ended_at: datetime
    result: CallResult
    begun_at: datetime | None = None
    is_requeued: bool = False
