"""The lifecycle of a started guard: its components, state, health and end."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Never

from poisonguard.dedupe.once import Window
from poisonguard.errors import StartTimeout
from poisonguard.handling.circuit_breaker import Breaker, BreakerPolicy
from poisonguard.handling.concurrency_slots_and_suspect_isolation import Gate, Slots
from poisonguard.handling.guard_components import GuardComponents
from poisonguard.handling.guard_health import GuardHealth
from poisonguard.handling.guard_periodic_work import Upkeep
from poisonguard.handling.handled_counts_and_durations import ProcessCounts, Slot
from poisonguard.handling.healthy_path import numbering
from poisonguard.handling.released_messages_to_retry import ReleasedMessages
from poisonguard.handling.reports_of_maybe_sick_process import (
    SuspectedReports,
)
from poisonguard.handling.slow_path import BEFORE_FIRST_MESSAGE, MessageFlow
from poisonguard.journal.in_flight_journal import Journal
from poisonguard.outcome import Outcome
from poisonguard.policy import RetryPolicy
from poisonguard.processes.signal_safe_event import SignalSafeEvent, end_process
from poisonguard.processes.sigterm_handler import SIGTERM
from poisonguard.readers import Reader
from poisonguard.server.threads_shared_by_guards import Connection
from poisonguard.settings import Settings
from poisonguard.supervision.watchdog import Watchdog

log = logging.getLogger(__name__)

EXIT_TIMEOUT = 2.0
DRAIN_POLL_SECONDS = 0.02


def utc_now() -> datetime:
    """Return the present time by this host's clock."""
    return datetime.fromtimestamp(time.time(), UTC)


class RunningGuard:
    """The components of a started guard, and its background work.

    `open` is the start gate. After it, the connection calls `tick` about once a second.
    """

    def __init__(  # noqa: PLR0913 - the parameters of Guard
        self,
        *,
        settings: Settings,
        reader: Reader,
        policy: RetryPolicy,
        breaker: BreakerPolicy | None,
        journal: Journal,
        keep_alive: Callable[[Any], object] | None,
        redeliver: Callable[[Any, float], object] | None,
        settle: Callable[[Any, Outcome], object] | None,
        dedupe: Window | None,
        clock: Callable[[], datetime] | None,
    ) -> None:
        own_clock = clock or utc_now
        self._settings = settings
        self._journal = journal
        self._connection = self._open_journal_and_connect(journal, settings)
        skips = self._connection.skip_list(
            topic=settings.topic,
            consumer_group=settings.consumer_group,
            handler_version=settings.version,
            client_name=settings.client_name,
        )
        gate = Gate(
            "starting",
            BEFORE_FIRST_MESSAGE,
            choose=partial(
                numbering, reader=reader, skips=skips, policy=policy, clock=own_clock
            ),
        )
        skips.on_kinds.append(gate.choose_numbering)
        slots = [Slot(place) for place in range(settings.concurrency)]
        counts = ProcessCounts(slots)
        self.components = GuardComponents(
            settings=settings,
            policy=policy,
            reader=reader,
            journal=journal,
            attempts=journal.attempts,
            skips=skips,
            reporter=self._connection.reporter,
            breaker=Breaker(
                breaker,
                handled=lambda: counts.total,
                clock=time.monotonic,
                dates=own_clock,
            ),
            counts=counts,
            slots=Slots(slots, gate),
            gate=gate,
            suspected_reports=SuspectedReports(),
            released_messages=ReleasedMessages(gate),
            keep_alive=keep_alive,
            redeliver=redeliver,
            settle=settle,
            clock=own_clock,
            server_clock=clock or self._connection.client.now,
            host=socket.gethostname(),
            leaving=SignalSafeEvent(),
            closed=threading.Event(),
            end_process=self._end_process,
        )
        self.handling = MessageFlow(self.components)
        self.once = (
            dedupe.open(
                topic=settings.topic,
                consumer_group=settings.consumer_group,
                reader=reader,
            )
            if dedupe is not None
            else None
        )
        self._watchdog = (
            Watchdog(journal, handler_timeout=settings.handler_timeout)
            if settings.handler_timeout
            else None
        )
        self._health = GuardHealth(
            self.components,
            flow=self.handling,
            connection=self._connection,
            once=self.once,
        )
        self._upkeep = Upkeep(self.components, flow=self.handling, health=self._health)
        self._closing = threading.Lock()

    @staticmethod
    def _open_journal_and_connect(journal: Journal, settings: Settings) -> Connection:
        """Open the guard's journal and a connection; close it where that fails."""
        name = "\n".join(
            (settings.topic, settings.consumer_group, settings.client_name)
        )
        journal.open(name=name, slots=settings.concurrency)
        try:
            return Connection.shared(
                settings.url, settings.api_key, spool=settings.spool
            )
        except BaseException:
            journal.close()
            raise

    def open(self) -> None:
        """Load the skip list and admit messages; raise StartTimeout, or Refused.

        It raises StartTimeout only if `when_unloaded` is "refuse"; otherwise it admits
        messages without the skip list.
        """
        try:
            self._connection.start(self._settings.start_timeout)
        except StartTimeout as reason:
            if self._settings.when_unloaded == "refuse":
                self.close(timeout=0)
                raise
            warning = f"Started without the skip list: {reason}"
            self._health.start_warnings.append(warning)
            log.warning("%s", warning)
        except BaseException:
            self.close(timeout=0)
            raise
        if self._watchdog is not None:
            self._watchdog.start()
        self._connection.on_tick.append(self.tick)
        atexit.register(self.close, timeout=EXIT_TIMEOUT)
        _live.add(self)
        self.components.gate.open("starting")
        self._upkeep.send_heartbeat()

    # Signals

    def listen(self) -> None:
        """Have the guard hear SIGTERM, ahead of the application's handler.

        Only the main thread can set the handler; other threads ask it to.
        """
        SIGTERM.add_listener(self.stopping)

    def stopping(self) -> None:
        """Note that this process will end, so that no message is charged with that.

        Take no lock, and never wait.
        """
        self._journal.stopping()
        self.components.leaving.set()

    def tick(self) -> None:
        """Do the guard's due work about once a second; never wait."""
        SIGTERM.ensure_handler()
        self._health.check_signals()
        self._upkeep.run()

    def health(self) -> dict[str, object]:
        """Return the state of the guard, for a health page or a log."""
        return self._health.facts()

    # The end

    def close(self, *, timeout: float) -> None:
        """Take no more messages, wait for those in flight, send unsent reports."""
        with self._closing:
            if self.components.closed.is_set():
                return
            self.components.closed.set()
        self.components.gate.close("closed")
        self.stopping()
        deadline = time.monotonic() + timeout
        while self.components.slots.running and time.monotonic() < deadline:
            time.sleep(DRAIN_POLL_SECONDS)
        self._shut_down(max(0.0, deadline - time.monotonic()))

    def _shut_down(self, timeout: float) -> None:
        """Report the guard's last counts, close its parts within `timeout` seconds."""
        atexit.unregister(self.close)
        _live.discard(self)
        SIGTERM.remove_listener(self.stopping)
        if self.tick in self._connection.on_tick:
            self._connection.on_tick.remove(self.tick)
            self._upkeep.report_counts()
            self._upkeep.send_heartbeat()
            self._upkeep.resend_suspected()
        if self._watchdog is not None:
            self._watchdog.stop()
        self._journal.close()
        self._connection.leave(self.components.skips)
        self._connection.close(timeout)

    def _end_process(self, code: object) -> Never:
        """End the process from any thread, after sending the guard's counts."""
        self._upkeep.report_counts()
        self.components.reporter.flush(EXIT_TIMEOUT)
        end_process(code)

    def reset_after_fork(self) -> None:
        """Forget all that is the parent's guard's in a forked child."""
        components = self.components
        components.leaving.reset_after_fork()
        components.closed = threading.Event()
        components.gate.reset_after_fork(BEFORE_FIRST_MESSAGE)
        components.slots.reset_after_fork()
        components.counts.reset_after_fork()
        components.breaker.reset_after_fork()
        components.suspected_reports.reset_after_fork()
        components.released_messages.reset_after_fork()
        if self.once is not None:
            self.once.reset_after_fork()
        self.handling.reset_after_fork()
        self._health.reset_after_fork()
        self._upkeep.reset_after_fork()
        self._closing = threading.Lock()


# The open guards of this process.
_live: weakref.WeakSet[RunningGuard] = weakref.WeakSet()


def _reset_all_after_fork() -> None:
    """Reset all open guards in a forked child."""
    for running in list(_live):
        running.reset_after_fork()


os.register_at_fork(after_in_child=_reset_all_after_fork)
