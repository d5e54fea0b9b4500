"""A circuit breaker: pauses a consumer that fails nearly every message.

closed -> open       too many messages failed in a row, or too large a share
open -> half-open    after a pause, one message is tried
half-open -> closed  it was handled
half-open -> open    it failed; the pause doubles

The healthy path only counts handled messages; the breaker reads that count when a
message fails.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from poisonguard.errors import Misconfigured
from poisonguard.policy import double_pause

LONGEST_PAUSE = 300.0
PROBE_POLL_SECONDS = 0.1  # seconds that the other messages wait between checks


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakerPolicy:
    """How many failures pause the guard.

    It pauses after `in_a_row` failed messages, or when more than `share` of the last
    `of_last` messages failed, once there were `at_least`. Their durations do not
    matter. The first pause lasts `pause` seconds.
    """

    in_a_row: int = 50
    share: float = 0.2
    at_least: int = 100
    of_last: int = 500
    pause: float = 30.0

    def __post_init__(self) -> None:
        if self.in_a_row < 1 or self.at_least < 1:
            raise Misconfigured(
                f"in_a_row is {self.in_a_row!r} and at_least {self.at_least!r}: give 1"
                " or more."
            )
        if self.of_last < self.at_least:
            raise Misconfigured(
                f"of_last is {self.of_last!r}: give {self.at_least!r}, which is"
                " at_least, or more."
            )
        if not 0 < self.share <= 1 or not self.pause > 0:
            raise Misconfigured(
                f"share is {self.share!r} and pause {self.pause!r}: give a share above"
                " 0 and up to 1, and a pause of more than 0 seconds."
            )


class BreakerState(StrEnum):
    """Whether the breaker lets messages pass."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Admission(NamedTuple):
    """How many seconds a message must wait, or that it is the probe."""

    wait: float = 0.0
    is_probe: bool = False


class _Failure(NamedTuple):
    """The number of a failed message, and the time of its failure."""

    place: int
    at: datetime


class Breaker:
    """Count failed messages against handled ones; safe to share between threads.

    `handled` returns how many messages were handled so far, `clock` the seconds of a
    monotonic clock, `dates` the time by the clock that dates failures. Without a
    policy the breaker counts and never opens.
    """

    def __init__(
        self,
        policy: BreakerPolicy | None,
        *,
        handled: Callable[[], int],
        clock: Callable[[], float],
        dates: Callable[[], datetime],
    ) -> None:
        self._policy = policy
        self._handled = handled
        self._clock = clock
        self._dates = dates
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Close the breaker and forget failures, the parent's, in a forked child."""
        self._lock = threading.Lock()
        self._state = BreakerState.CLOSED
        self._in_a_row = 0
        self._handled_then = 0  # when a message failed last
        self._reset_window()
        self._pause = 0.0
        self._until = 0.0
        self.reason = ""

    @property
    def state(self) -> BreakerState:
        return self._state

    @property
    def in_a_row(self) -> int:
        """Return how many messages failed since the last handled one."""
        with self._lock:
            return self._in_a_row if self._handled() == self._handled_then else 0

    @property
    def failing_since(self) -> datetime | None:
        """Return the time of the first failure that opened the guard's breaker.

        Return None while the breaker is closed.
        """
        with self._lock:
            if self._state is BreakerState.CLOSED or not self._failures:
                return None
            # Not the first failure's: a clock set back may date a later one before it.
            return min(failure.at for failure in self._failures)

    def count_failure(self) -> bool:
        """Count a message that is to be given up; return whether the breaker is open.

        While it is open, failures of messages still in flight do not count.
        """
        with self._lock:
            if self._state is not BreakerState.CLOSED:
                return True
            handled = self._handled()
            self._in_a_row = self._in_a_row + 1 if handled == self._handled_then else 1
            self._handled_then = handled
            self.reason = self._add_failure(handled)
            if self.reason:
                self._open(self._clock())
            return bool(self.reason)

    def admit(self) -> Admission:
        """Return whether a message may pass the breaker, must wait, or is its probe.

        Report the result of a probe to `probed`.
        """
        with self._lock:
            if self._state is BreakerState.CLOSED:
                return Admission()
            rest = self._until - self._clock()
            if rest > 0 or self._state is BreakerState.HALF_OPEN:
                return Admission(wait=max(rest, PROBE_POLL_SECONDS))
            self._state = BreakerState.HALF_OPEN
            return Admission(is_probe=True)

    def probed(self, *, handled: bool | None) -> None:
        """Close the breaker after a handled probe; pause again after a failed one.

        None means that the probe did not run.
        """
        with self._lock:
            if self._state is not BreakerState.HALF_OPEN:
                return
            if handled is None:
                self._state = BreakerState.OPEN
            elif handled:
                self._close()
            else:
                self._open(self._clock())

    def _add_failure(self, handled: int) -> str:
        """Count a failed message; return why it opens the breaker, "" if not."""
        policy = self._policy
        if policy is None:
            return ""
        self._failed += 1
        total = handled - self._handled_before + self._failed
        self._failures.append(_Failure(total, self._dates()))
        last = min(total, policy.of_last)
        while self._failures[0].place <= total - last:
            self._failures.popleft()
        failed = len(self._failures)
        if self._in_a_row >= policy.in_a_row:
            return f"{self._in_a_row} messages failed in a row"
        if last >= policy.at_least and failed > policy.share * last:
            return f"{failed} of the last {last} messages failed"
        return ""

    def _reset_window(self) -> None:
        """Start a new window of the breaker: count messages and failures from 0."""
        self._failed = 0
        self._handled_before = self._handled()
        self._failures: deque[_Failure] = deque()

    def _open(self, now: float) -> None:
        """Open the guard's breaker, for a longer pause if it was not closed since."""
        first = self._policy.pause if self._policy else 0.0
        longer = double_pause(self._pause, 1, cap=LONGEST_PAUSE)
        self._pause = longer if self._pause else first
        self._state = BreakerState.OPEN
        self._until = now + self._pause

    def _close(self) -> None:
        """Close the guard's breaker, and count failures from 0."""
        self._state = BreakerState.CLOSED
        self._pause = 0.0
        self._in_a_row = 0
        self._reset_window()
        self.reason = ""
