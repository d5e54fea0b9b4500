"""Calls that may never return, in threads of their own, a bounded number at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class BoundedThreads:
    """Start threads that nothing waits for: a call that hangs keeps its slot."""

    def __init__(self, most: int, *, name: str) -> None:
        self._slots = threading.BoundedSemaphore(most)
        self._name = name

    def start(self, call: Callable[[], T]) -> Future[T] | None:
        """Start a call in a thread of its own; return its future.

        Returns None if too many earlier calls have not returned yet.
        """
        if not self._slots.acquire(blocking=False):
            return None
        answer: Future[T] = Future()
        threading.Thread(
            target=self._run, args=(call, answer), name=self._name, daemon=True
        ).start()
        return answer

    def _run(self, call: Callable[[], T], answer: Future[T]) -> None:
        """Run a server's call that may hang, settle its future, and free its slot."""
        # Who waits may end before the call: its future takes the result nevertheless.
        answer.set_running_or_notify_cancel()
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised on to who waits
            answer.set_exception(error)
        finally:
            self._slots.release()
