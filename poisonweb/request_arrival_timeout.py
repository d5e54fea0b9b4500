"""The time in which a connection's next HTTP request has to arrive whole.

Uvicorn waits for ever for the rest of a request: an incomplete one keeps its connection
and its memory.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

SECONDS = 60.0
# Sooner, timers of uvloop begin again and again.
LEAST_SECONDS = 0.001
TOO_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)


class RequestTimeLimit:
    """A time limit for a connection's next request, by the connection's event loop.

    A timer of the loop costs more than all else here. So one can go on while an answer
    is under way, and serve the next request, too.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_late: Callable[[], None]
    ) -> None:
        self._loop, self._on_late = loop, on_late
        self._timer: asyncio.TimerHandle | None = None
        # When the request must be whole, and when the timer looks at that.
        self._until = self._due = math.inf

    def start(self, seconds: float | None = None) -> None:
        """Call `on_late` unless the request is whole in time: in SECONDS by default."""
        self._until = self._loop.time() + (SECONDS if seconds is None else seconds)
        if self._timer is None or self._due > self._until:
            self._start_timer()

    def suspend(self) -> None:
        """Stop the time alone: the HTTP request is whole, and its answer is under way.

        Its timer costs no start next; call `stop` at the end of the connection.
        """
        self._until = math.inf

    def stop(self) -> None:
        """Stop the time with its timer: no rest of an HTTP request is awaited."""
        self._until = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def seconds_left(self) -> float:
        """Return the seconds in which the rest of the request must arrive."""
        seconds = self._until - self._loop.time()
        return SECONDS if seconds == math.inf else seconds

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = self._until
        seconds = max(self._due - self._loop.time(), LEAST_SECONDS)
        self._timer = self._loop.call_later(seconds, self._end)

    def _end(self) -> None:
        """Call `on_late`, or wait for the rest of the time of a later request."""
        self._timer = None
        if self._until <= self._loop.time():
            self._on_late()
        elif self._until < math.inf:
            self._start_timer()
