"""How many calls of an endpoint may begin now: concurrency, rate, and slow start."""

from __future__ import annotations

# So many failures in a row are an outage where the endpoint has no breaker to say so.
OUTAGE_FAILURES = 5
# Of the calls of a second, what may begin at one moment.
BURST = 0.1


# How long calls are counted before their rate is judged.
COUNTED_SECONDS = 0.05
# Calls that wait for a claim say little about their back end: a rate is forgotten bit
# by bit, by half in this time.
HALF_LIFE_SECONDS = 0.5


class CallThroughput:
    """How many calls of an endpoint can end in a time, judged by the last ones."""

    def __init__(self) -> None:
        self._ended = 0
        self._counted_from = 0.0
        self._each_second = 0.0

    def add(self) -> None:
        """Count a call of the endpoint that ended, to measure how fast calls end."""
        self._ended += 1

    def expected(self, *, seconds: float, now: float) -> int:
        """Estimate how many calls of the endpoint will end within so many seconds."""
        counted = now - self._counted_from
        if counted >= COUNTED_SECONDS:
            before = self._each_second * 0.5 ** (counted / HALF_LIFE_SECONDS)
            self._each_second = max(self._ended / counted, before)
            self._ended, self._counted_from = 0, now
        return int(self._each_second * seconds)


class CallPace:
    """The concurrency, the rate and the slow start of an endpoint's calls.

    After an outage, and for a new owner, one call begins, then two, then four: what has
    become overdue reaches the back end bit by bit. Every call that ends makes room for
    two. Times are seconds of any steady clock.
    """

    def __init__(self) -> None:
        self._window = 1
        self._failures = 0
        self._tokens = 1.0
        self._counted_at: float | None = None

    @property
    def window(self) -> int:
        """Return how many calls of the endpoint the slow start lets run at once."""
        return self._window

    @property
    def failures(self) -> int:
        """Return how many calls of the endpoint have failed in a row."""
        return self._failures

    def room(
        self, *, in_flight: int, concurrency: int, rate: float | None, now: float
    ) -> int:
        """Return how many calls of the endpoint may begin now.

        The least that concurrency, slow start and rate allow.
        """
        room = min(concurrency, self._window) - in_flight
        if rate is not None:
            room = min(room, int(self._count_tokens(rate, now)))
        return max(room, 0)

    def seconds_to_token(self, rate: float) -> float:
        """Return the seconds until the endpoint's rate lets its next call begin."""
        return max(0.0, (1.0 - self._tokens) / rate)

    def begin(self, calls: int) -> None:
        """Note that so many calls of the endpoint begin."""
        self._tokens -= calls

    def end(self, *, is_success: bool, outage: int) -> None:
        """Note the end of an endpoint's call; it makes room for another one.

        Some failures in a row are an outage, `outage` of them, or 5 if it is 0: the
        first success after it begins the slow start again.
        """
        if not is_success:
            self._failures += 1
        elif self._failures >= (outage or OUTAGE_FAILURES):
            self._window = self._failures = 0
        else:
            self._failures = 0
        self._window += 1

    def limit_window(self, concurrency: int) -> None:
        """Let the slow start's window be no larger than the endpoint's concurrency."""
        self._window = max(1, min(self._window, concurrency))

    def _count_tokens(self, rate: float, now: float) -> float:
        """Add the tokens of the endpoint's rate since the last look; return all."""
        if self._counted_at is not None:
            self._tokens += (now - self._counted_at) * rate
        self._counted_at = now
        self._tokens = min(self._tokens, 1.0 + rate * BURST)
        return self._tokens
