"""Kill a process whose handler hangs, after writing its stacks."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from poisonguard.errors import Misconfigured
from poisonguard.journal.in_flight_journal import Journal
from poisonguard.processes import thread_stack_dump
from poisonguard.processes.kernel_process_facts import Identity

log = logging.getLogger(__name__)

CHECKS = 10  # checks within the time-out, which may be exceeded by one interval
INTERVAL_LIMIT = 1.0
MISSED_CHECKS = 5  # missed checks in a row that mean that we ourselves did not run

# The number in flight in a slot, and its beat.
Work = tuple[int, int]
SlotKeyT = TypeVar("SlotKeyT", bound=Hashable)


def interval(handler_timeout: float) -> float:
    """Return the seconds between hang checks of handlers with this time-out.

    Raise Misconfigured for a time-out that is not more than 0.
    """
    if not handler_timeout > 0:
        raise Misconfigured(
            f"handler_timeout is {handler_timeout!r}: give the seconds after which a "
            "handler is stuck, or leave it out."
        )
    return min(handler_timeout / CHECKS, INTERVAL_LIMIT)


class HangDetector(Generic[SlotKeyT]):
    """Find, check by check, the slots that work on one message for too long.

    Time during which the whole machine or container was suspended does not count.
    """

    def __init__(self, handler_timeout: float) -> None:
        self._limit = handler_timeout
        self._longest = MISSED_CHECKS * interval(handler_timeout)
        self._since: dict[SlotKeyT, tuple[Work, float]] = {}
        self._looked: float | None = None

    def stuck(
        self, slots: Iterable[tuple[SlotKeyT, Work]], *, now: float
    ) -> list[SlotKeyT]:
        """Return the journal slots whose messages hang; `now` is in seconds."""
        if self._looked is not None and now - self._looked > self._longest:
            self._since.clear()
        self._looked = now
        before, self._since = self._since, {}
        for slot, work in slots:
            previous_work, since = before.get(slot, (work, now))
            if work[0]:
                self._since[slot] = (work, since if previous_work == work else now)
        return [
            slot for slot, (_, at) in self._since.items() if now - at >= self._limit
        ]


class Watchdog:
    """A thread that kills its own process once a slot is at one message too long.

    It needs the interpreter: a handler that holds it inside of C is only caught by the
    supervisor, `python -m poisonguard run --handler-timeout S -- CMD`.
    """

    def __init__(self, journal: Journal, *, handler_timeout: float) -> None:
        self._journal = journal
        self._limit = handler_timeout
        self._interval = interval(handler_timeout)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        # A forked child has the journal, but none of our threads.
        journal.reopened.append(self._restart)

    def start(self) -> None:
        """Start the thread that checks for hanging messages."""
        self._thread = threading.Thread(
            target=self._watch, name="poisonguard-watchdog", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the hang checks; call it before the journal is closed."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _restart(self) -> None:
        """Start the hang checks in a forked child too, if the parent had them."""
        if self._thread is not None:
            self._stopped = threading.Event()
            self.start()

    def _watch(self) -> None:
        """Check the message slots until `stop`; end the process once one is stuck."""
        detector: HangDetector[int] = HangDetector(self._limit)
        while not self._stopped.wait(self._interval):
            stuck = detector.stuck(self._slots(), now=time.monotonic())
            if stuck:
                self._kill_process(stuck)

    def _slots(self) -> list[tuple[int, Work]]:
        """Return each slot with the message number in it and its beat."""
        slots = self._journal.slots
        pairs = zip(slots.words.tolist(), slots.beats.tolist(), strict=True)
        return list(enumerate(pairs))

    def _kill_process(self, stuck: list[int]) -> None:
        """Record which messages hang, write all stacks, kill this process."""
        numbers = [self._journal.words[slot] for slot in stuck]
        log.critical(
            "the handler of %s is stuck for %g s: killing this process",
            ", ".join(f"message {number}" for number in numbers),
            self._limit,
        )
        # First of all, so that the cause is recorded whatever fails below.
        self._journal.hangs(stuck, seconds=self._limit)
        try:
            thread_stack_dump.dump(self._journal.folder, Identity.own())
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
