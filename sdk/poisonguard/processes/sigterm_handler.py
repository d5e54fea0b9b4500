"""SIGTERM: notifies the guards of a process before the application.

Python has one handler per signal, the one set last. Ours calls the application's after
notifying the guards. Where the application or an event loop sets another handler later,
`ensure_handler` finds that out and puts ours before it. Only the main thread may set
handlers: other threads send it a SIGURG, which is otherwise ignored.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

# An application that keeps resetting its handler would make an endless chain.
MOST_TIMES = 100
REMEDY = (
    "so what is in flight when this process is told to stop may be blamed for its end: "
    "call guard.stopping() where you learn that it is to stop."
)


class Sigterm:
    """The listeners to SIGTERM; a signal handler must take no lock."""

    def __init__(self) -> None:
        self._listeners: dict[Callable[[], None], None] = {}
        self._times = 0

    def add_listener(self, tell: Callable[[], None]) -> None:
        """Call `tell` at each SIGTERM, as soon as the handler can be set."""
        self._listeners[tell] = None
        is_free = signal.getsignal(signal.SIGURG) is signal.SIG_DFL
        if is_free and _is_main_thread():
            signal.signal(signal.SIGURG, self._on_wake_signal)
        self.ensure_handler()

    def remove_listener(self, tell: Callable[[], None]) -> None:
        """Remove a SIGTERM listener; the last one restores the former handlers."""
        self._listeners.pop(tell, None)
        if self._listeners:
            return
        self._times = 0
        if not _is_main_thread():
            return
        handler = signal.getsignal(signal.SIGTERM)
        if isinstance(handler, _Handler):
            signal.signal(signal.SIGTERM, handler.before)
        if signal.getsignal(signal.SIGURG) == self._on_wake_signal:
            signal.signal(signal.SIGURG, signal.SIG_DFL)

    def ensure_handler(self) -> None:
        """Put our SIGTERM handler first, from any thread; never wait."""
        if not self._listeners or not self._is_missing():
            return
        main = threading.main_thread()
        if _is_main_thread():
            self._set_handler()
        elif (
            signal.getsignal(signal.SIGURG) == self._on_wake_signal and main.is_alive()
        ):
            signal.pthread_kill(main.ident or 0, signal.SIGURG)

    @property
    def warning(self) -> str:
        """Say why SIGTERM is not heard, and what to do; empty while it is."""
        handler = signal.getsignal(signal.SIGTERM)
        if isinstance(handler, _Handler):
            return ""
        if handler is signal.SIG_IGN:
            why = "This process ignores SIGTERM"
        elif handler is None:
            why = "SIGTERM is handled outside of Python"
        else:
            why = "SIGTERM is handled without us, for only the main thread may set that"
        return f"{why}, {REMEDY}"

    def _is_missing(self) -> bool:
        """Tell whether Python code replaced our SIGTERM handler: set it again.

        Not after MOST_TIMES, nor where SIGTERM is ignored or handled outside of Python.
        """
        # Leave applications alone that ignore SIGTERM or handle it outside of Python.
        handler = signal.getsignal(signal.SIGTERM)
        if isinstance(handler, _Handler) or handler in {None, signal.SIG_IGN}:
            return False
        return self._times < MOST_TIMES

    def _set_handler(self) -> None:
        """Set our SIGTERM handler, which calls the present one last."""
        self._times += 1
        before = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, _Handler(self._notify, before))

    def _notify(self) -> None:
        """Call all listeners to SIGTERM."""
        for tell in list(self._listeners):
            tell()

    def _on_wake_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Restore our SIGTERM handler: SIGURG brought this call to the main thread."""
        self.ensure_handler()


class _Handler:
    """Notifies the guards, and passes the signal on."""

    def __init__(self, tell: Callable[[], None], before: Any) -> None:
        self.before = before
        self._notify = tell

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._notify()
        if callable(self.before):
            self.before(number, frame)
        else:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _is_main_thread() -> bool:
    """Tell whether the calling thread is the main thread."""
    return threading.current_thread() is threading.main_thread()


SIGTERM = Sigterm()
