"""The retry policy: when a failed message is retried, and when given up."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any, Literal

from poisonguard.errors import Misconfigured

WEEK = 7 * 86_400.0
# 2.0 ** 1024 does not fit a float; any sensible cap is reached long before.
HIGHEST_EXPONENT = 62

Jitter = Literal["full", "decorrelated", "none"]
FirstFailure = Callable[[Any, Exception], object]


class RetryDecision(Enum):
    """What a failed attempt means for its message."""

    RETRY = auto()
    FATAL = auto()
    EXHAUSTED = auto()
    EXPIRED = auto()


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How often, how soon and how long a message is retried.

    `max_attempts` counts every delivery, the first included. The first retry waits
    from `base` to twice `base` seconds, each further one up to twice as long again,
    and none more than `cap`. A message is not retried when `expire_after` seconds have
    passed since it was first enqueued; on topics that replay, and where the broker does
    not tell that time, since its first failure. `fatal` are exceptions that no retry
    can help.

    `on_first_failure(message, error)` is called once per message, also across
    restarts; what it raises is logged.
    """

    max_attempts: int = 5
    base: float = 0.5
    cap: float = 300.0
    jitter: Jitter = "full"
    expire_after: float | None = WEEK
    fatal: tuple[type[Exception], ...] = ()
    on_first_failure: FirstFailure | None = None

    def __post_init__(self) -> None:
        if not _is_whole(self.max_attempts) or self.max_attempts < 1:
            raise Misconfigured(
                f"max_attempts is {self.max_attempts!r}, but it counts every delivery,"
                " the first included: give 1 or more."
            )
        if not 0 <= self.base <= self.cap or not math.isfinite(self.cap):
            raise Misconfigured(
                f"base is {self.base!r} and cap {self.cap!r} seconds: give"
                " 0 <= base <= cap."
            )
        if self.jitter not in {"full", "decorrelated", "none"}:
            raise Misconfigured(
                f"jitter is {self.jitter!r}: give full, decorrelated or none."
            )
        if self.expire_after is not None and not self.expire_after > 0:
            raise Misconfigured(
                f"expire_after is {self.expire_after!r} seconds: give more than 0, or"
                " None for messages that never expire."
            )
        if not all(_is_failure(kind) for kind in self.fatal):
            raise Misconfigured(
                "fatal holds something that is no subclass of Exception: give a tuple"
                " of exception classes."
            )

    def judge(
        self,
        error: Exception,
        *,
        attempts: int,
        due_at: datetime,
        first_enqueued_at: datetime,
    ) -> RetryDecision:
        """Decide on a failed handler's message: retry it, or why to give it up."""
        if isinstance(error, self.fatal):
            return RetryDecision.FATAL
        if attempts >= self.max_attempts:
            return RetryDecision.EXHAUSTED
        # It would have expired before the retry.
        if self.is_expired(first_enqueued_at, at=due_at):
            return RetryDecision.EXPIRED
        return RetryDecision.RETRY

    def is_expired(self, first_enqueued_at: datetime, *, at: datetime) -> bool:
        """Tell whether a message has waited `expire_after` seconds at that time."""
        if self.expire_after is None:
            return False
        return at - first_enqueued_at >= timedelta(seconds=self.expire_after)

    def delay(self, attempts: int, *, before: float | None = None) -> float:
        """Draw the seconds until a message's next attempt, after the delay `before`."""
        match self.jitter:
            case "none":
                return self._doubled(attempts - 1)
            case "decorrelated":
                return min(self.cap, _draw(self.base, 3 * (before or self.base)))
            case "full":
                return _draw(self.base, self._doubled(attempts))

    def _doubled(self, times: int) -> float:
        """Return the delay `base`, doubled so many times, up to `cap`."""
        return double_pause(self.base, times, cap=self.cap)


def double_pause(base: float, times: int, *, cap: float) -> float:
    """Double a pause so many times, up to `cap`."""
    return min(cap, base * 2.0 ** min(times, HIGHEST_EXPONENT))


def _draw(low: float, high: float) -> float:
    """Draw a random number between two bounds."""
    return random.uniform(low, high)  # noqa: S311 - spreads load, keeps no secret


def _is_whole(value: object) -> bool:
    """Tell whether a value is a whole number, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_failure(kind: object) -> bool:
    """Tell whether a value is a subclass of Exception."""
    return isinstance(kind, type) and issubclass(kind, Exception)
