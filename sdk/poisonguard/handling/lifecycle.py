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
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Never

from poisonguard.contract import GuardHeartbeat, GuardState
from poisonguard.dedupe.once import Window
from poisonguard.errors import Away, Full, Refused, StartTimeout
from poisonguard.handling.breaker import Breaker, BreakerPolicy, BreakerState
from poisonguard.handling.counts import Counts, Slot
from poisonguard.handling.hot_path import numbering
from poisonguard.handling.message_flow import (
    BEFORE_FIRST_MESSAGE,
    GuardComponents,
    MessageFlow,
)
from poisonguard.handling.released_messages import (
    HandlerNeeded,
    ReleasedMessages,
    refuse_to_run,
)
from poisonguard.handling.slots import Gate, Slots
from poisonguard.handling.steps import play
from poisonguard.handling.suspects import SuspectedReports
from poisonguard.journal.process_journal import Journal
from poisonguard.outcome import Outcome
from poisonguard.policy import RetryPolicy
from poisonguard.processes.sigterm import SIGTERM
from poisonguard.processes.stopping import Leaving, end_process
from poisonguard.readers import Reader
from poisonguard.server.connection import Connection
from poisonguard.settings import Settings
from poisonguard.supervision.watchdog import Watchdog
from poisonguard.version import VERSION

log = logging.getLogger(__name__)

EXIT_TIMEOUT = 2.0
REFRESH_EVERY = 10.0  # seconds between reads of what other processes recorded
RESEND_TIMEOUT = 5.0
DRAIN_POLL_SECONDS = 0.02


def utc_now() -> datetime:
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
        self._host = socket.gethostname()
        self._warnings: list[str] = []
        self._connection = self._opened(journal, settings)
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
        skips.on_kinds.append(gate.choose)
        slots = [Slot(place) for place in range(settings.concurrency)]
        counts = Counts(slots)
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
            host=self._host,
            leaving=Leaving(),
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
        self._reset()

    @staticmethod
    def _opened(journal: Journal, settings: Settings) -> Connection:
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

    def _reset(self) -> None:
        self._refreshed_at = time.monotonic()
        self._unheard_checks = 0
        self._counting = threading.Lock()
        self._resending = threading.Lock()
        self._retrying = threading.Lock()
        self._closing = threading.Lock()

    def open(self) -> None:
        """Load the skip list and admit messages; raise StartTimeout, or Refused."""
        try:
            self._connection.start(self._settings.start_timeout)
        except StartTimeout as reason:
            if self._settings.when_unloaded == "refuse":
                self.close(timeout=0)
                raise
            self._warnings.append(f"Started without the skip list: {reason}")
            log.warning("%s", self._warnings[-1])
        except BaseException:
            self.close(timeout=0)
            raise
        if self._watchdog is not None:
            self._watchdog.start()
        self._connection.on_tick.append(self.tick)
        atexit.register(self.close, timeout=EXIT_TIMEOUT)
        _live.add(self)
        self.components.gate.open("starting")
        self._send_heartbeat()

    # Signals

    def listen(self) -> None:
        """Listen to SIGTERM, ahead of the application's handler.

        Only the main thread can set the handler; other threads ask it to.
        """
        SIGTERM.join(self.stopping)

    def stopping(self) -> None:
        """Charge no message with the coming end; take no lock, and never wait."""
        self._journal.stopping()
        self.components.leaving.set()

    # About once a second

    def tick(self) -> None:
        """Hand over counts and the heartbeat, and start due retries; never wait."""
        SIGTERM.ensure_handler()
        self._unheard_checks = self._unheard_checks + 1 if SIGTERM.warning else 0
        self._count()
        self._send_heartbeat()
        self._clear_doubts()
        handled = self.components.counts.total
        if (
            self.components.suspected_reports.first(handled=handled)
            and not self._resending.locked()
        ):
            threading.Thread(
                target=self._resend, name="poisonguard-withheld", daemon=True
            ).start()
        if self.components.released_messages.is_due() and not self._retrying.locked():
            threading.Thread(
                target=self._retry, name="poisonguard-kept", daemon=True
            ).start()
        if time.monotonic() - self._refreshed_at >= REFRESH_EVERY:
            self._refreshed_at = time.monotonic()
            self.components.attempts.refresh()

    def _count(self) -> None:
        with self._counting:
            handled, durations = self.components.counts.take_new()
            if handled or durations:
                self._connection.reporter.count(
                    self.handling.key, handled=handled, durations=durations
                )

    def _clear_doubts(self) -> None:
        """Report messages that we handled and another consumer failed on."""
        doubts = self.components.skips.doubts()
        if not doubts:
            return
        recent = set(self.components.counts.recent)
        for doubt in doubts:
            skip = doubt.skip
            number = self.components.reader.number_again(
                bookmark=skip.value, message_id=doubt.message_id, seq=doubt.seq
            )
            if number in recent and skip.id is not None:
                log.warning("%r was handled here, and failed elsewhere", skip.value)
                self._connection.reporter.applied.count(
                    skip=skip.id,
                    consumer_group=self._settings.consumer_group,
                    client_name=self._settings.client_name,
                    times=0,
                    handled=True,
                )
                self.components.skips.settle_doubt(skip.id)

    def _resend(self) -> None:
        """Report suspected poisons again, as certain: this process is not sick."""
        suspected_reports = self.components.suspected_reports
        with self._resending:
            while report := suspected_reports.first(
                handled=self.components.counts.total
            ):
                try:
                    self._connection.reporter.poison(
                        report,
                        when_away=self._settings.when_away,
                        keep_alive=None,
                        stop=self.components.leaving,
                        hold_for=RESEND_TIMEOUT,
                    )
                except (Away, Full) as reason:
                    log.info("%r stays suspected for now: %s", report.bookmark, reason)
                    return
                except Refused as reason:
                    log.error(  # noqa: TRY400 - the server says why
                        "%r stays suspected: %s", report.bookmark, reason
                    )
                suspected_reports.remove_oldest()

    def _retry(self) -> None:
        """Retry released messages that may not need their handler."""
        released_messages, leaving = (
            self.components.released_messages,
            self.components.leaving,
        )
        with self._retrying:
            while not leaving.is_set():
                entry = released_messages.take(needs_handler=False)
                if entry is None:
                    return
                steps = self.handling.retry_steps(entry)
                with suppress(HandlerNeeded):
                    play(steps, refuse_to_run, entry.message, leaving)

    def _send_heartbeat(self) -> None:
        reporter = self._connection.reporter
        reporter.set_heartbeat(
            GuardHeartbeat(
                reporter=reporter.id,
                topic=self._settings.topic,
                consumer_group=self._settings.consumer_group,
                client_name=self._settings.client_name,
                host=self._host,
                version=VERSION,
                handler_version=self._settings.version,
                state=self.state,
                detail=self._detail,
                skips_age_s=self.components.skips.age,
                spooled=reporter.spooled,
                suspected=len(self.components.suspected_reports),
                journal=self._journal.folder is not None,
                failing_since=self._failing_since,
                at=reporter.now(),
            )
        )

    @property
    def _failing_since(self) -> datetime | None:
        """Return the time of the first failure that opened the breaker."""
        since = self.components.breaker.failing_since
        # A message fails a moment before its failure is counted.
        return None if since is None else since - timedelta(seconds=1)

    @property
    def state(self) -> GuardState:
        if self.components.leaving.is_set():
            return GuardState.STOPPING
        if self.components.breaker.state is not BreakerState.CLOSED:
            return GuardState.PAUSED
        waiting = self.handling.holding or self.components.released_messages
        if waiting and "failures" in self._connection.reporter.trouble:
            return GuardState.HOLDING
        return GuardState.RUNNING

    @property
    def _detail(self) -> str:
        """Say in one line what a person should know first."""
        return "; ".join(filter(None, [self.components.breaker.reason, *self.warnings]))

    @property
    def warnings(self) -> list[str]:
        problems = [*self._journal.problems, *self.components.attempts.problems]
        if self._unheard_checks > 1:  # the first check mostly repairs what it finds
            problems += filter(None, [SIGTERM.warning])
        if self.once is not None:
            problems += self.once.warnings
        return [*self._warnings, *self._connection.warnings, *problems]

    @property
    def _released_warnings(self) -> list[str]:
        number = len(self.components.released_messages)
        if not number:
            return []
        return [f"Released messages that wait to be tried again here: {number}."]

    def health(self) -> dict[str, object]:
        """Return the state of the guard, for a health page or a log."""
        components, settings = self.components, self._settings
        return {
            "topic": settings.topic,
            "consumer_group": settings.consumer_group,
            "client_name": settings.client_name,
            "host": self._host,
            "version": VERSION,
            "handler_version": settings.version,
            "state": self.state.value,
            "skips": len(components.skips),
            "skips_age": components.skips.age,
            "spooled": self._connection.reporter.spooled,
            "holding": len(self.handling.holding),
            "retrying": len(self.handling.retrying),
            "kept": len(components.released_messages),
            "breaker": {
                "state": components.breaker.state.value,
                "failed_in_a_row": components.breaker.in_a_row,
                "reason": components.breaker.reason,
            },
            "suspects": len(
                components.attempts.suspects - components.attempts.given_up
            ),
            "suspected": len(components.suspected_reports),
            "handled": components.counts.total,
            "in_flight": components.slots.running,
            "dedupe": self.once.facts() if self.once is not None else None,
            "journal": self._journal.facts(),
            "warnings": [*self.warnings, *self._released_warnings],
        }

    # The end

    def close(self, *, timeout: float) -> None:
        """Take no more messages, wait for those in flight, and send what is unsent."""
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
        atexit.unregister(self.close)
        _live.discard(self)
        SIGTERM.leave(self.stopping)
        if self.tick in self._connection.on_tick:
            self._connection.on_tick.remove(self.tick)
            self._count()
            self._send_heartbeat()
            self._resend()
        if self._watchdog is not None:
            self._watchdog.stop()
        self._journal.close()
        self._connection.leave(self.components.skips)
        self._connection.close(timeout)

    def _end_process(self, code: object) -> Never:
        """End the process from any thread, after sending its counts."""
        self._count()
        self._connection.reporter.flush(EXIT_TIMEOUT)
        end_process(code)

    def reset_after_fork(self) -> None:
        """Forget all that is the parent's; called in a forked child."""
        components = self.components
        components.leaving, components.closed = Leaving(), threading.Event()
        components.gate.reset_after_fork(BEFORE_FIRST_MESSAGE)
        components.slots.reset_after_fork()
        components.counts.reset_after_fork()
        components.breaker.reset_after_fork()
        components.suspected_reports.reset_after_fork()
        components.released_messages.reset_after_fork()
        if self.once is not None:
            self.once.reset_after_fork()
        self.handling.reset_after_fork()
        self._reset()


# The open guards of this process.
_live: weakref.WeakSet[RunningGuard] = weakref.WeakSet()


def _reset_all_after_fork() -> None:
    for running in list(_live):
        running.reset_after_fork()


os.register_at_fork(after_in_child=_reset_all_after_fork)
