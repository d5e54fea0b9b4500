"""The time in which a connection's next HTTP request has to arrive whole.

Uvicorn waits for ever for the rest of a request: an incomplete one keeps its connection
and its memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SECONDS = 60.0
TOO_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)


class RequestTimeLimit:
    """A timer for a connection's next request, in the connection's event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_late: Callable[[], None]
    ) -> None:
        self._loop, self._on_late = loop, on_late
        self._timer: asyncio.TimerHandle | None = None

    def start(self, seconds: float | None = None) -> None:
        """Call `on_late` unless the request is whole in time: in SECONDS by default."""
        self.stop()
        seconds = SECONDS if seconds is None else seconds
        self._timer = self._loop.call_later(seconds, self._on_late)

    def stop(self) -> None:
        """Stop the timer: the HTTP request is whole, and its answer may take longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def seconds_left(self) -> float:
        """Return the seconds in which the rest of the request must arrive."""
        return self._timer.when() - self._loop.time() if self._timer else SECONDS
