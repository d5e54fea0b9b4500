"""The thread that sends a process's reports."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from poisonguard.errors import Full, GuardError, Misconfigured, Refused
from poisonguard.server.backoff import Backoff
from poisonguard.server.report_request_and_answers import Sender

log = logging.getLogger(__name__)

# Refused requests are refused again until a person changes the cause.
REFUSED_PAUSE = 5.0
_IDLE = 1.0


class ReportQueue(Protocol):
    """Reports that wait to be sent."""

    @property
    def waiting(self) -> int: ...

    def send(self, sender: Sender, *, everything: bool) -> None:
        """Send due reports, or, with `everything`, all; raise why that failed."""


class SenderThread:
    """Send what is due in each queue, in their order, about once a second.

    A queue whose reports are refused does not delay the others; while the server is
    away, all wait. `trouble` gets the reasons, by the name of the queue or under
    "server". The queue "failures" does not pause, because guards wait for it.
    """

    def __init__(
        self,
        sender: Sender,
        queues: Mapping[str, ReportQueue],
        *,
        trouble: dict[str, str],
        on_end: Callable[[], None],
        refused_pause: float = REFUSED_PAUSE,
    ) -> None:
        self._sender = sender
        self._queues = queues
        self._trouble = trouble
        self._on_end = on_end
        self._refused_pause = refused_pause
        self._lock = threading.Lock()
        self._not_before: dict[str, float] = {}
        self._woken = threading.Event()
        self._flushing = threading.Event()
        self._flushed = threading.Event()
        self._ended = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread that sends reports, unless it runs or was ended."""
        if self._thread is None:
            self._start_once()

    def _start_once(self) -> None:
        """Start the thread that sends reports, if no other thread is doing so."""
        with self._lock:
            if self._thread is None and not self._ended:
                self._thread = threading.Thread(
                    target=self._run, name="poisonguard-reporter", daemon=True
                )
                self._thread.start()

    def wake(self) -> None:
        """End the sender's wait, so that it sends reports now; starts no thread."""
        self._woken.set()

    def flush(self, timeout: float) -> bool:
        """Send all reports to Poisonweb now; return whether it accepted them."""
        if self._waiting == 0 or self._ended:
            return self._waiting == 0
        self._flushed.clear()
        self._flushing.set()
        self.wake()
        self.start()
        try:
            return self._flushed.wait(timeout) and not self._trouble
        finally:
            self._flushing.clear()

    def end(self, timeout: float) -> None:
        """End the thread of reports; then, or at once without one, call `on_end`."""
        self._ended = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join(timeout)
        else:
            self._on_end()

    @property
    def _waiting(self) -> int:
        """Return how many reports to Poisonweb wait in all queues."""
        return sum(queue.waiting for queue in self._queues.values())

    def _run(self) -> None:
        """Send reports about once a second until the end, then call `on_end`."""
        backoff = Backoff(cap=5.0)
        while not self._ended:
            self._woken.clear()
            flushing = self._flushing.is_set()
            pause = self._try(backoff, everything=flushing)
            if flushing and "server" not in self._trouble:
                self._flushed.set()
            self._woken.wait(pause)
        self._on_end()

    def _try(self, backoff: Backoff, *, everything: bool) -> float:
        """Send due reports; return how many seconds to wait until the next try."""
        try:
            self._send_all(everything=everything)
        except GuardError as away:
            if "server" not in self._trouble:
                log.warning("reports wait until Poisonweb is there: %s", away)
            self._trouble["server"] = str(away)
        except Exception:
            log.exception("the reporter failed, and goes on")
            self._trouble["server"] = "the reporter failed: see the log"
        else:
            backoff.reset()
            self._trouble.pop("server", None)
            return _IDLE
        pause = backoff.next()
        # A guard waits for an answer: retry soon.
        return min(pause, 1.0) if self._queues["failures"].waiting else pause

    def _send_all(self, *, everything: bool) -> None:
        """Send Poisonweb each queue of reports whose pause is over."""
        for kind, queue in self._queues.items():
            if time.monotonic() >= self._not_before.get(kind, 0.0):
                self._send_queue(kind, queue, everything=everything)

    def _send_queue(self, kind: str, queue: ReportQueue, *, everything: bool) -> None:
        """Send one queue of reports; note why it is refused, and let it pause."""
        try:
            queue.send(self._sender, everything=everything)
        except (Refused, Misconfigured, Full) as refused:
            # A kind that the key may not send does not delay the others. Failures are
            # tried on without a pause, because a guard waits for them.
            if kind != "failures":
                self._not_before[kind] = time.monotonic() + self._refused_pause
            if kind not in self._trouble:
                log.warning("%s cannot be delivered: %s", kind, refused)
            self._trouble[kind] = str(refused)
        except Exception as reason:
            if kind == "failures":  # their guards are `holding`
                self._trouble[kind] = str(reason)
            raise
        else:
            self._trouble.pop(kind, None)
