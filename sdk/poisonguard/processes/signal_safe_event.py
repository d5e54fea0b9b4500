"""The end of a process: told to stop, or ended by a handler on any thread."""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress
from typing import Never


class SignalSafeEvent:
    """An event that says that this process must stop; signal handlers may set it.

    threading.Event takes a lock in `set`: a signal handler that interrupts the thread
    holding it would deadlock. Here the waiters queue for a lock that is released only
    when the event is set. It stays set.
    """

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Unset the stop event in a forked child: only its parent must stop."""
        self._is_set = False
        self._held_until_set = threading.Lock()
        self._held_until_set.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Set the stop event for good and wake all who wait; wait for no lock."""
        self._is_set = True
        self._let_one_go()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the stop event or `timeout` seconds; return whether it is set."""
        limit = -1 if timeout is None else max(0.0, timeout)
        if not self._is_set and self._held_until_set.acquire(timeout=limit):
            self._let_one_go()  # pass it to the next waiter
        return self._is_set

    def _let_one_go(self) -> None:
        """Release one waiter for the stop event; each waiter wakes the next."""
        with suppress(RuntimeError):  # it is released already
            self._held_until_set.release()


def end_process(code: object) -> Never:
    """End the process from any thread, as `sys.exit(code)` does from the main one.

    On other threads, SystemExit ends only the thread.
    """
    try:
        if code is not None and not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:  # also when flushing fails
        os._exit(_exit_status(code))


def _exit_status(code: object) -> int:
    """Return the exit status that `sys.exit(code)` would give."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1
