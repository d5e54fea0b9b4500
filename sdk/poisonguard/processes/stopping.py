"""How a process ends: told to stop, or ended by a handler from any thread."""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress
from typing import Never


class Leaving:
    """That this process is to stop; a signal handler may say so.

    An event is otherwise set under a lock: a handler that interrupts the thread that
    holds it would wait for ever. Here those who wait queue up for a lock that nobody
    gives back before it is set. It stays set.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._held_until_set = threading.Lock()
        self._held_until_set.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._let_one_go()

    def wait(self, timeout: float | None = None) -> bool:
        limit = -1 if timeout is None else max(0.0, timeout)
        if not self._is_set and self._held_until_set.acquire(timeout=limit):
            self._let_one_go()  # the next of those who wait
        return self._is_set

    def _let_one_go(self) -> None:
        with suppress(RuntimeError):  # nobody has it: whoever comes may
            self._held_until_set.release()


def end_process(code: object) -> Never:
    """End from any thread as `sys.exit(code)` does from the main thread.

    Elsewhere, raising SystemExit ends that thread alone and leaves a zombie behind.
    """
    try:
        if code is not None and not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:  # whatever keeps us from saying more
        os._exit(_status(code))


def _status(code: object) -> int:
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1
