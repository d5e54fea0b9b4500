"""An event that a signal handler can set safely."""

from __future__ import annotations

import threading

from poisonguard.processes.signal_safe_event import SignalSafeEvent


class StopEvent(threading.Event):
    """Ask threads to stop, also from a signal handler; it cannot be cleared.

    `threading.Event.set` takes a lock. A handler runs on the main thread between any
    two of its steps. If that thread waits for the event itself, it may hold the lock
    already, and the handler would wait for it forever.
    """

    def __init__(self) -> None:
        super().__init__()
        self._leaving = SignalSafeEvent()

    def is_set(self) -> bool:
        return self._leaving.is_set()

    def set(self) -> None:
        """Set Poisonweb's stop event; safe to call from a signal handler."""
        self._leaving.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until Poisonweb's stop event is set, or for `timeout` seconds.

        Returns whether it is set.
        """
        return self._leaving.wait(timeout)
