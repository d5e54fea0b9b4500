"""How many calls a key may make of an endpoint in a minute."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

# Callers beyond are forgotten, those first whose last call is longest ago.
MOST_CALLERS = 10_000
SECONDS = 60.0


@dataclass(slots=True)
class _Bucket:
    calls: float
    filled_at: float


class CallRateLimits:
    """Token buckets, which fill in a minute; one for each caller."""

    def __init__(self, most: int, *, monotonic: Callable[[], float]) -> None:
        self._most = most
        self._monotonic = monotonic
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()

    def take(self, caller: Hashable) -> float:
        """Count a call against a key's rate limit; return 0, or the seconds to wait."""
        now = self._monotonic()
        bucket = self._buckets.pop(caller, None) or _Bucket(self._most, now)
        self._buckets[caller] = bucket
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        filled = (now - bucket.filled_at) * self._most / SECONDS
        bucket.calls = min(bucket.calls + filled, self._most)
        bucket.filled_at = now
        if bucket.calls < 1:
            return (1 - bucket.calls) * SECONDS / self._most
        bucket.calls -= 1
        return 0.0
