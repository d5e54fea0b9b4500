"""A guard that was started: what it holds, how it is, and how it ends."""

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

from poisonguard.dedupe.once import Window
from poisonguard.errors import Away, Full, Refused, StartTimeout
from poisonguard.handling.breaker import Breaker, BreakerPolicy, State
from poisonguard.handling.counts import Slot, Tally
from poisonguard.handling.hot_path import numbering
from poisonguard.handling.message_flow import FIRST, Handling, Parts
from poisonguard.handling.released_messages import HandlerNeeded, Kept, refuse_to_run
from poisonguard.handling.slots import Gate, Turns
from poisonguard.handling.steps import play
from poisonguard.handling.suspects import Withheld
from poisonguard.journal.process_journal import Journal
from poisonguard.outcome import Outcome
from poisonguard.policy import RetryPolicy
from poisonguard.processes.sigterm import SIGTERM
from poisonguard.processes.stopping import Leaving, end_process
from poisonguard.readers import Reader
from poisonguard.server.connection import Link
from poisonguard.settings import Settings
from poisonguard.supervision.watchdog import Watchdog
from poisonguard.version import VERSION

log = logging.getLogger(__name__)

EXIT_TIMEOUT = 2.0
REFRESH_EVERY = 10.0  # seconds between looks at what other processes have found
RESEND_TIMEOUT = 5.0
DRAIN_LOOK = 0.02


def utc_now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)


class Running:
    """The parts of a started guard, and what goes on beside the messages.

    `open` is the start gate. From then on the link calls `tick` about once a second.
    """

    def __init__(  # noqa: PLR0913 - what a guard is made of
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
        self._link = self._opened(journal, settings)
        skips = self._link.skip_list(
            topic=settings.topic,
            consumer_group=settings.consumer_group,
            handler_version=settings.version,
            client_name=settings.client_name,
        )
        gate = Gate(
            "starting",
            FIRST,
            choose=partial(
                numbering, reader=reader, skips=skips, policy=policy, clock=own_clock
            ),
        )
        skips.on_kinds.append(gate.choose)
        slots = [Slot(place) for place in range(settings.concurrency)]
        tally = Tally(slots)
        self.parts = Parts(
            settings=settings,
            policy=policy,
            reader=reader,
            journal=journal,
            attempts=journal.attempts,
            skips=skips,
            reporter=self._link.reporter,
            breaker=Breaker(
                breaker,
                handled=lambda: tally.total,
                clock=time.monotonic,
                dates=own_clock,
            ),
            tally=tally,
            turns=Turns(slots, gate),
            gate=gate,
            withheld=Withheld(),
            kept=Kept(gate),
            keep_alive=keep_alive,
            redeliver=redeliver,
            settle=settle,
            clock=own_clock,
            server_clock=clock or self._link.client.now,
            host=self._host,
            leaving=Leaving(),
            closed=threading.Event(),
            end_process=self._end_process,
        )
        self.handling = Handling(self.parts)
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
        self._begin()

    @staticmethod
    def _opened(journal: Journal, settings: Settings) -> Link:
        name = "\n".join(
            (settings.topic, settings.consumer_group, settings.client_name)
        )
        journal.open(name=name, slots=settings.concurrency)
        try:
            return Link.shared(settings.url, settings.api_key, spool=settings.spool)
        except BaseException:
            journal.close()
            raise

    def _begin(self) -> None:
        self._refreshed_at = time.monotonic()
        self._deaf_looks = 0
        self._counting = threading.Lock()
        self._resending = threading.Lock()
        self._retrying = threading.Lock()
        self._closing = threading.Lock()

    def open(self) -> None:
        """Load the skip list and let messages in; raises StartTimeout, or Refused."""
        try:
            self._link.start(self._settings.start_timeout)
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
        self._link.on_tick.append(self.tick)
        atexit.register(self.close, timeout=EXIT_TIMEOUT)
        _live.add(self)
        self.parts.gate.open("starting")
        self._tell()

    # Signals

    def listen(self) -> None:
        """Learn of SIGTERM before those who know of it: from then on nobody is blamed.

        Only the main thread can begin to; a look on any thread goes on from there.
        """
        SIGTERM.join(self.stopping)

    def stopping(self) -> None:
        """Blame nobody from here on, and wait for nothing; takes no lock."""
        self._journal.stopping()
        self.parts.leaving.set()

    # About once a second

    def tick(self) -> None:
        """Hand over what was counted, and look around; waits for nothing."""
        SIGTERM.look()
        self._deaf_looks = self._deaf_looks + 1 if SIGTERM.warning else 0
        self._count()
        self._tell()
        self._vouch()
        handled = self.parts.tally.total
        if self.parts.withheld.first(handled=handled) and not self._resending.locked():
            threading.Thread(
                target=self._resend, name="poisonguard-withheld", daemon=True
            ).start()
        if self.parts.kept.is_due() and not self._retrying.locked():
            threading.Thread(
                target=self._retry, name="poisonguard-kept", daemon=True
            ).start()
        if time.monotonic() - self._refreshed_at >= REFRESH_EVERY:
            self._refreshed_at = time.monotonic()
            self.parts.attempts.refresh()

    def _count(self) -> None:
        with self._counting:
            handled, durations = self.parts.tally.news()
            if handled or durations:
                self._link.reporter.count(
                    self.handling.key, handled=handled, durations=durations
                )

    def _vouch(self) -> None:
        """Say which messages we handled of those that another consumer failed on."""
        doubts = self.parts.skips.doubts()
        if not doubts:
            return
        recent = set(self.parts.tally.recent)
        for doubt in doubts:
            skip = doubt.skip
            number = self.parts.reader.number_again(
                bookmark=skip.value, message_id=doubt.message_id, seq=doubt.seq
            )
            if number in recent and skip.id is not None:
                log.warning("%r was handled here, and failed elsewhere", skip.value)
                self._link.reporter.applied.count(
                    skip=skip.id,
                    consumer_group=self._settings.consumer_group,
                    client_name=self._settings.client_name,
                    times=0,
                    handled=True,
                )
                self.parts.skips.settle_doubt(skip.id)

    def _resend(self) -> None:
        """Tell of the withheld poisons again, now that it is not this process."""
        withheld = self.parts.withheld
        with self._resending:
            while report := withheld.first(handled=self.parts.tally.total):
                try:
                    self._link.reporter.poison(
                        report,
                        when_away=self._settings.when_away,
                        keep_alive=None,
                        stop=self.parts.leaving,
                        hold_for=RESEND_TIMEOUT,
                    )
                except (Away, Full) as reason:
                    log.info("%r stays suspected for now: %s", report.bookmark, reason)
                    return
                except Refused as reason:
                    log.error(  # noqa: TRY400 - the server says why
                        "%r stays suspected: %s", report.bookmark, reason
                    )
                withheld.sent()

    def _retry(self) -> None:
        """Try again what was released, as far as it goes without its handler."""
        kept, leaving = self.parts.kept, self.parts.leaving
        with self._retrying:
            while not leaving.is_set():
                entry = kept.take(needs_handler=False)
                if entry is None:
                    return
                steps = self.handling.steps_again(entry)
                with suppress(HandlerNeeded):
                    play(steps, refuse_to_run, entry.message, leaving)

    def _tell(self) -> None:
        self._link.reporter.tell(
            {
                "topic": self._settings.topic,
                "consumer_group": self._settings.consumer_group,
                "client_name": self._settings.client_name,
                "host": self._host,
                "version": VERSION,
                "handler_version": self._settings.version,
                "state": self.state,
                "detail": self._detail,
                "skips_age_s": self.parts.skips.age,
                "spooled": self._link.reporter.spooled,
                "suspected": len(self.parts.withheld),
                "journal": self._journal.folder is not None,
                "failing_since": self._failing_since,
            }
        )

    @property
    def _failing_since(self) -> str | None:
        """Date the first failure of those that the breaker opened for."""
        since = self.parts.breaker.failing_since
        # A message fails a moment before it counts.
        return None if since is None else (since - timedelta(seconds=1)).isoformat()

    @property
    def state(self) -> str:
        if self.parts.leaving.is_set():
            return "stopping"
        if self.parts.breaker.state is not State.CLOSED:
            return "paused"
        waiting = self.handling.holding or self.parts.kept
        if waiting and "failures" in self._link.reporter.trouble:
            return "holding"
        return "running"

    @property
    def _detail(self) -> str:
        """Say in a line what a person should know first."""
        return "; ".join(filter(None, [self.parts.breaker.reason, *self.warnings]))

    @property
    def warnings(self) -> list[str]:
        problems = [*self._journal.problems, *self.parts.attempts.problems]
        if self._deaf_looks > 1:  # what the first look finds, it mostly mends
            problems += filter(None, [SIGTERM.warning])
        if self.once is not None:
            problems += self.once.warnings
        return [*self._warnings, *self._link.warnings, *problems]

    @property
    def _kept_warnings(self) -> list[str]:
        number = len(self.parts.kept)
        if not number:
            return []
        return [f"Released messages that wait to be tried again here: {number}."]

    def health(self) -> dict[str, object]:
        """Return the facts, for a health page or a log."""
        parts, settings = self.parts, self._settings
        return {
            "topic": settings.topic,
            "consumer_group": settings.consumer_group,
            "client_name": settings.client_name,
            "host": self._host,
            "version": VERSION,
            "handler_version": settings.version,
            "state": self.state,
            "skips": len(parts.skips),
            "skips_age": parts.skips.age,
            "spooled": self._link.reporter.spooled,
            "holding": len(self.handling.holding),
            "retrying": len(self.handling.retrying),
            "kept": len(parts.kept),
            "breaker": {
                "state": parts.breaker.state.value,
                "failed_in_a_row": parts.breaker.in_a_row,
                "reason": parts.breaker.reason,
            },
            "suspects": len(parts.attempts.suspects - parts.attempts.given_up),
            "suspected": len(parts.withheld),
            "handled": parts.tally.total,
            "in_flight": parts.turns.running,
            "dedupe": self.once.facts() if self.once is not None else None,
            "journal": self._journal.facts(),
            "warnings": [*self.warnings, *self._kept_warnings],
        }

    # The end

    def close(self, *, timeout: float) -> None:
        """Take no more messages, let those in flight end, and tell what is untold."""
        with self._closing:
            if self.parts.closed.is_set():
                return
            self.parts.closed.set()
        self.parts.gate.close("closed")
        self.stopping()
        deadline = time.monotonic() + timeout
        while self.parts.turns.running and time.monotonic() < deadline:
            time.sleep(DRAIN_LOOK)
        self._let_go(max(0.0, deadline - time.monotonic()))

    def _let_go(self, timeout: float) -> None:
        atexit.unregister(self.close)
        _live.discard(self)
        SIGTERM.leave(self.stopping)
        if self.tick in self._link.on_tick:
            self._link.on_tick.remove(self.tick)
            self._count()
            self._tell()
            self._resend()
        if self._watchdog is not None:
            self._watchdog.stop()
        self._journal.close()
        self._link.leave(self.parts.skips)
        self._link.close(timeout)

    def _end_process(self, code: object) -> Never:
        """End from a thread, with what it has counted told."""
        self._count()
        self._link.reporter.flush(EXIT_TIMEOUT)
        end_process(code)

    def begin_in_child(self) -> None:
        """Know of nothing that was the parent's: called in a forked child."""
        parts = self.parts
        parts.leaving, parts.closed = Leaving(), threading.Event()
        parts.gate.begin(FIRST)
        parts.turns.begin()
        parts.tally.begin()
        parts.breaker.begin()
        parts.withheld.begin()
        parts.kept.begin()
        if self.once is not None:
            self.once.begin_in_child()
        self.handling.begin()
        self._begin()


# The guards of this process that messages may come to.
_live: weakref.WeakSet[Running] = weakref.WeakSet()


def _begin_in_child() -> None:
    for running in list(_live):
        running.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
