"""Keep the rate of an operation: messages a second, at the call that hands them over.

Few messages at a time, evenly spaced, so that no second has more than its share.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from apps.core.errors import Invalid

HIGHEST_RATE = 100_000

# Claims a second, at a rate that allows more than one message for each.
CLAIMS = 25
# A lag is made up for by at most this many seconds, less than one claim. So no second,
# wherever it begins, has more than one claim above its share.
MOST_LAG = 1 / (4 * CLAIMS)
NO_LIMIT = 1_000_000


def require_rate(rate: int | None) -> None:
    """Raise Invalid for an operation's impossible rate."""
    if rate is not None and not 1 <= rate <= HIGHEST_RATE:
        raise Invalid(
            "rate",
            f"give 1 to {HIGHEST_RATE:,} messages a second, or null for no limit",
        )


def at_once(rate: int | None) -> int:
    """Return how many messages an operation's rate sends together."""
    return NO_LIMIT if rate is None else max(1, rate // CLAIMS)


class Pacer:
    """Wait before messages are handed over, so that the rate is kept.

    `rate` is asked each time: it may change while the operation runs.
    """

    def __init__(
        self,
        rate: Callable[[], int | None],
        *,
        timer: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._timer = timer
        self._sleep = sleep
        # The run before this one may have sent a moment ago.
        self._next_at = timer()
        self._is_first = True

    def wait(self, number: int) -> None:
        """Wait until the operation's rate allows so many messages.

        They are `at_once` of it at most, so that it sleeps for a second at most.
        """
        rate = self._rate()
        now = self._timer()
        if rate is None:
            self._next_at = now
            return
        if self._is_first:
            self._next_at, self._is_first = now + number / rate, False
        due = max(self._next_at, now - MOST_LAG)
        if due > now:
            self._sleep(due - now)
        self._next_at = due + number / rate
