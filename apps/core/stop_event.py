"""An event that a signal handler may set."""

from __future__ import annotations

import threading

from poisonguard.processes.stopping import Leaving


class StopEvent(threading.Event):
    """Ask threads to stop, also from the handler of a signal; it cannot be cleared.

    `threading.Event.set` takes a lock. A handler runs on the main thread between any
    two of its steps: where that thread waits for the event itself, it may hold the lock
    already, and would then wait for it without an end.
    """

    def __init__(self) -> None:
        super().__init__()
        self._leaving = Leaving()

    def is_set(self) -> bool:
        return self._leaving.is_set()

    def set(self) -> None:
        self._leaving.set()

    def wait(self, timeout: float | None = None) -> bool:
        return self._leaving.wait(timeout)
