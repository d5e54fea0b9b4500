"""When a delivery is tried again, and when no more: pure functions of its numbers.

`retry_count` counts failures: 1 after the first try failed. With N retries a delivery
ends when it is greater than N, as in the article's `retry_count > 10`: after N + 1
calls. `Retry-After` (RFC 9110 10.2.3) can only lengthen a wait, up to the longest one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime

from apps.redelivery.endpoint_and_delivery_choices import IntervalGrowth, Jitter
from poisonguard.contract import Cause
from poisonguard.policy import double_pause

SHORTEST_WAIT = 1.0
LONGEST_WAIT = 3_600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPlan:
    """The plan of an endpoint; times in seconds.

    `retries` is N, and None where only the expiry ends a delivery; `interval` is T, and
    `longest` caps what it grows to.
    """

    retries: int | None
    interval: float
    backoff: IntervalGrowth = IntervalGrowth.FIXED
    jitter: Jitter = Jitter.NONE
    longest: float = LONGEST_WAIT

    def wait(
        self,
        retry_count: int,
        *,
        last_wait: float = 0.0,
        retry_after: float | None = None,
    ) -> float:
        """Return the seconds from a delivery's failure to its next try.

        `last_wait` is the wait before the try that failed, which only the decorrelated
        jitter needs.
        """
        wait = self._jittered(self._grown(retry_count), last_wait)
        wait = max(wait, retry_after or 0.0)
        return max(min(wait, self.longest), SHORTEST_WAIT)

    def is_exhausted(self, retry_count: int) -> bool:
        """Tell whether so many failures of a delivery leave no retry in the plan."""
        return self.retries is not None and retry_count > self.retries

    def _grown(self, retry_count: int) -> float:
        """Return the wait before a next try, grown by failures, before jitter."""
        if self.backoff is IntervalGrowth.FIXED:
            return self.interval
        return double_pause(self.interval, retry_count - 1, cap=self.longest)

    def _jittered(self, wait: float, last_wait: float) -> float:
        """Spread the seconds between two tries at random, by the plan's jitter."""
        match self.jitter:
            case Jitter.NONE:
                return wait
            case Jitter.FULL:
                return random.uniform(0, wait)  # noqa: S311 - not for secrets
            case Jitter.EQUAL:
                return wait / 2 + random.uniform(0, wait / 2)  # noqa: S311
            case Jitter.DECORRELATED:
                most = max(last_wait, self.interval) * 3
                return random.uniform(self.interval, most)  # noqa: S311


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedTry:
    """A failed try, after which a delivery is tried again or ends.

    `retry_count` includes it. `may_have_arrived`: what it did is unknown.
    """

    retry_count: int
    may_have_arrived: bool
    last_wait: float
    retry_after: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class NextTry:
    due_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class NoMoreTries:
    cause: Cause


def after_failure(
    plan: RetryPlan,
    failure: FailedTry,
    *,
    is_repeatable: bool,
    expires_at: datetime | None,
    now: datetime,
) -> NextTry | NoMoreTries:
    """Decide whether, and when, a delivery is tried again after a failed try.

    A delivery that would be due only after its expiry waits until then, and ends.
    """
    if failure.may_have_arrived and not is_repeatable:
        return NoMoreTries(cause=Cause.UNKNOWN)
    if plan.is_exhausted(failure.retry_count):
        return NoMoreTries(cause=Cause.EXHAUSTED)
    if expires_at is not None and now >= expires_at:
        return NoMoreTries(cause=Cause.EXPIRED)
    wait = plan.wait(
        failure.retry_count,
        last_wait=failure.last_wait,
        retry_after=failure.retry_after,
    )
    due_at = now + timedelta(seconds=wait)
    return NextTry(due_at=due_at if expires_at is None else min(due_at, expires_at))


def retry_after_seconds(value: bytes | None, *, now: datetime) -> float | None:
    """Parse a Retry-After header: seconds or a date; None for anything else."""
    if value is None:
        return None
    text = value.decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:10]), LONGEST_WAIT)
    try:
        date = parsedate_to_datetime(text)
        return max((date - now).total_seconds(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None
