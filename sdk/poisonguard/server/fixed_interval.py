"""Intervals between things that are done every so many seconds."""

from __future__ import annotations

import time


class RepeatInterval:
    """The time until something is due again; the first time it is due at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due_at = 0.0

    def restart_if_due(self, *, early: bool) -> bool:
        """Restart a repeated interval if it is over, or `early`.

        Return whether it was restarted.
        """
        now = time.monotonic()
        if now < self._due_at and not early:
            return False
        self._due_at = now + self._seconds
        return True

    def end(self) -> None:
        """End a repeated interval early: what waits for it is due now."""
        self._due_at = 0.0
