"""The time to wait before the next try when a server does not answer."""

from __future__ import annotations

import threading

from apps.core import back_off

FIRST = 0.5
LONGEST = 15.0


class BackOff:
    """Wait twice as long after every error in a row; `stop` ends the wait."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._errors = 0

    def reset(self) -> None:
        """Begin with a sample's shortest wait between tries again, after a success."""
        self._errors = 0

    def wait(self) -> None:
        """Let the sample wait before its next try to reach a server or the broker.

        The wait is longer each time, and ends when the program stops.
        """
        seconds = back_off.delay(self._errors, base=FIRST, cap=LONGEST)
        self._errors += 1
        self._stop.wait(seconds)
