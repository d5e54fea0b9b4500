"""How long to wait before asking again what did not answer."""

from __future__ import annotations

import random
import threading

FIRST = 0.5
LONGEST = 15.0


class BackOff:
    """Wait twice as long after each trouble in a row, but never past `stop`."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._troubles = 0

    def reset(self) -> None:
        self._troubles = 0

    def wait(self) -> None:
        highest = min(LONGEST, FIRST * 2 ** min(self._troubles, 10))
        self._troubles += 1
        # Jitter: clients that lost one server together must not return together.
        self._stop.wait(random.uniform(highest / 2, highest))
