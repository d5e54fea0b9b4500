"""The time to wait before the next try when a server does not answer."""

from __future__ import annotations

import random
import threading

FIRST = 0.5
LONGEST = 15.0


class BackOff:
    """Waits twice as long after every error in a row; `stop` ends the wait."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._errors = 0

    def reset(self) -> None:
        self._errors = 0

    def wait(self) -> None:
        highest = min(LONGEST, FIRST * 2 ** min(self._errors, 10))
        self._errors += 1
        # Jitter: clients that lost a server together must not reconnect together.
        self._stop.wait(random.uniform(highest / 2, highest))
