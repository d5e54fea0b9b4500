"""The slow path of one message, from its arrival to its outcome.

The healthy path (`hot_path`) handles ordinary messages alone. The slow path checks, in
this order: has the message expired, is there a skip for it, is it a copy of a redriven
message, has it killed too many processes, is the breaker closed, may it run beside
others. Then it runs the handler, as often as the policy says.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Never
from uuid import UUID

from poisonguard.contract import (
    Cause,
    Confirmation,
    FailureReport,
    MatcherKind,
    Raised,
    Skip,
)
from poisonguard.dedupe.once import Busy, Copy, Unmarked
from poisonguard.errors import Full, GuardError, Misconfigured, Refused
from poisonguard.handling.breaker import PROBE_POLL_SECONDS, Breaker, BreakerState
from poisonguard.handling.counts import Counts, Slot
from poisonguard.handling.message_facts import MessageFacts
from poisonguard.handling.poison_reports import (
    failure_report,
    raised_by,
    raised_by_death,
)
from poisonguard.handling.released_messages import (
    HandlerNeeded,
    ReleasedMessage,
    ReleasedMessages,
)
from poisonguard.handling.slots import Gate, Slots
from poisonguard.handling.steps import RUN, Call, Step, Steps, Wait
from poisonguard.handling.suspects import SuspectedReports
from poisonguard.journal.attempts import SKIP_COMES, UNSETTLED, Attempts, Record
from poisonguard.journal.process_journal import Journal
from poisonguard.outcome import Outcome
from poisonguard.policy import RetryDecision, RetryPolicy
from poisonguard.processes.sigterm import SIGTERM
from poisonguard.processes.stopping import Leaving
from poisonguard.readers import Reader
from poisonguard.server.counters import CounterKey
from poisonguard.server.failure_queue import Receipt
from poisonguard.server.reporter import Reporter
from poisonguard.settings import Settings
from poisonguard.skipping.skip_list import SkipList

log = logging.getLogger(__name__)

# After so many failures in a row, the process itself may be what is sick.
SUSPECT_AFTER_FAILURES = 10
# With more messages waiting to be reported, the oldest lose their traceback.
RAISED_LIMIT = 1_000
EARLY_HOLD_SECONDS = 1.0  # seconds to hold a message that came before its retry is due
NO_ROOM_PAUSE = 1.0  # seconds until a message that cannot be kept is tried again
POLL_SECONDS = 0.01  # seconds between checks for a free slot
COPY_POLL_LIMIT = 0.2  # seconds between checks whether a copy is done, at the most
REFUSAL_PAUSE = 5.0  # seconds: a broker may return it at once, and we would spin
# Why the gate of a process is closed until its first message.
BEFORE_FIRST_MESSAGE = "first"

_CAUSES = {
    RetryDecision.FATAL: Cause.FATAL,
    RetryDecision.EXHAUSTED: Cause.EXHAUSTED,
    RetryDecision.EXPIRED: Cause.EXPIRED,
}


class Released(Exception):
    """Return the message to the broker, to be delivered again after some seconds."""

    def __init__(self, reason: str, *, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


@dataclass(kw_only=True, slots=True)
class GuardComponents:
    """The components of one guard, shared by both paths."""

    settings: Settings
    policy: RetryPolicy
    reader: Reader
    journal: Journal
    attempts: Attempts
    skips: SkipList
    reporter: Reporter
    breaker: Breaker
    counts: Counts
    slots: Slots
    gate: Gate
    suspected_reports: SuspectedReports
    released_messages: ReleasedMessages
    keep_alive: Callable[[Any], object] | None
    redeliver: Callable[[Any, float], object] | None
    settle: Callable[[Any, Outcome], object] | None
    clock: Callable[[], datetime]
    server_clock: Callable[[], datetime]
    host: str
    leaving: Leaving  # this process was told to stop: wait for nothing
    closed: threading.Event  # the guard takes no more messages
    end_process: Callable[[object], Never]


class MessageFlow:
    """Decides the outcomes of messages; all threads and tasks of a guard share it."""

    def __init__(self, components: GuardComponents) -> None:
        self._components = components
        self._settings = components.settings
        self._policy = components.policy
        self._attempts = components.attempts
        self._journal = components.journal
        self._breaker = components.breaker
        self._slots = components.slots
        self._reporter = components.reporter
        self._released_messages = components.released_messages
        self.key = CounterKey(
            topic=components.settings.topic,
            consumer_group=components.settings.consumer_group,
            client_name=components.settings.client_name,
        )
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget all messages: in a forked child they are the parent's."""
        self.holding: set[UUID] = set()  # ids of reports that wait for the server
        self.retrying: set[MessageFacts] = set()  # waiting for their retry in place
        # The errors of messages that are given up but not reported yet, by identity.
        self._raised: dict[bytes, Raised] = {}

    def steps(self, message: object, handler: Callable[[Any], Any]) -> Steps:
        """Return the steps for a message that was just delivered."""
        facts = MessageFacts(self._components.reader, message, handler)
        return self._released_on_trouble(facts, self._arrived(facts))

    def failure_steps(
        self,
        message: object,
        handler: Callable[[Any], Any],
        slot: Slot,
        error: BaseException,
    ) -> Steps:
        """Return the steps for a message whose handler raised on the healthy path."""
        facts = MessageFacts(self._components.reader, message, handler)
        steps = self._once(facts, self._caught(facts, slot, error))
        return self._released_on_trouble(facts, steps)

    def take_retry(self) -> ReleasedMessage | None:
        """Take a released message that must be retried on the consumer's thread."""
        if (
            self._breaker.state is not BreakerState.CLOSED
            or self._components.closed.is_set()
        ):
            return None
        return self._released_messages.take(needs_handler=True)

    def retry_steps(self, entry: ReleasedMessage) -> Steps:
        """Return the steps to retry a message that the guard has kept."""
        facts = MessageFacts(self._components.reader, entry.message, entry.handler)
        try:
            outcome = yield from self._decide(facts)
        except (Released, GuardError) as reason:
            log.info("%s waits on in the guard: %s", self._name(facts), reason)
            self._released_messages.give_back(entry, needs_handler=False)
            return Outcome.RELEASE
        except BaseException as error:
            self._released_messages.give_back(
                entry, needs_handler=isinstance(error, HandlerNeeded)
            )
            raise
        if self._components.settle is not None:
            yield from self._call_application(
                facts, partial(self._components.settle, entry.message, outcome)
            )
        self._released_messages.settled(entry)
        return outcome

    def _released_on_trouble(self, facts: MessageFacts, steps: Steps) -> Steps:
        while True:
            try:
                return (yield from steps)
            except Released as reason:
                after = reason.after
                log.info("%s is released: %s", self._name(facts), reason)
            except Refused as reason:
                after = REFUSAL_PAUSE
                log.error(  # noqa: TRY400 - the server says why
                    "%s cannot be reported: %s", self._name(facts), reason
                )
                with suppress(Released):
                    yield from self._pause_after_refusal(facts)
            except Misconfigured as reason:
                # The message cannot be identified: do not keep it.
                log.error(  # noqa: TRY400 - it says what to do
                    "a message is released, unsettled: %s", reason
                )
                return Outcome.RELEASE
            except GuardError as reason:
                after = REFUSAL_PAUSE
                log.warning("%s is released, unsettled: %s", self._name(facts), reason)
            if (yield from self._release(facts, after)):
                return Outcome.RELEASE
            steps = self._decide(facts)

    def _pause_after_refusal(self, facts: MessageFacts) -> Generator[Step, Any, None]:
        if self._components.redeliver is None and not self._components.reader.replays:
            pause = min(REFUSAL_PAUSE, self._settings.hold_for)
            yield from self._wait(facts, pause)

    def _release(self, facts: MessageFacts, after: float) -> Generator[Step, Any, bool]:
        """Arrange that a message is tried again, where that is the guard's task.

        Return False where the guard should keep it but has no room: the caller then
        holds it, and takes no message behind it meanwhile.
        """
        redeliver, leaving = self._components.redeliver, self._components.leaving
        if redeliver is not None:
            call = partial(redeliver, facts.message, after)
            yield from self._call_application(facts, call)
            return True
        # After a stop, the next process reads the topic again.
        if not self._components.reader.replays or leaving.is_set() or self._keep(facts):
            return True
        with suppress(Released):
            yield from self._wait(facts, NO_ROOM_PAUSE)
        return False

    def _keep(self, facts: MessageFacts) -> bool:
        entry = ReleasedMessage(
            bookmark=facts.bookmark,
            message=self._components.reader.copy(facts.message),
            handler=facts.handler,
            size=len(facts.body),
        )
        return self._released_messages.add(entry)

    def _call_application(
        self, facts: MessageFacts, call: Callable[[], object]
    ) -> Generator[Step, Any, None]:
        """Call the application; log its exceptions."""
        try:
            yield Call(call)
        except Exception:
            log.exception("a call back for %s failed", self._name(facts))

    def _arrived(self, facts: MessageFacts) -> Steps:
        if self._components.closed.is_set():
            raise Released("the guard is closed")
        if self._components.gate.is_closed_by(BEFORE_FIRST_MESSAGE):
            # By now the application has set its signal handlers, maybe on this thread.
            SIGTERM.ensure_handler()
            yield Call(self._start_journal)
        while not self._released_messages.discard_unless_busy(facts.bookmark):
            yield from self._wait(facts, POLL_SECONDS)
        return (yield from self._decide(facts))

    def _decide(self, facts: MessageFacts) -> Steps:
        return self._once(facts, self._judge(facts))

    def _once(self, facts: MessageFacts, steps: Steps) -> Steps:
        """Wait while a copy of the message runs; skip it if one was handled."""
        waiting_since, pause = None, POLL_SECONDS
        while True:
            try:
                return (yield from steps)
            except Copy:
                return self._pass_over(facts)
            except Unmarked as reason:
                log.error(  # noqa: TRY400 - it says what to do
                    "whether %s is a copy cannot be told: %s",
                    self._name(facts),
                    reason,
                )
                yield from self._pause_after_refusal(facts)
                raise Released(str(reason), after=REFUSAL_PAUSE) from None
            except Busy:
                now = time.monotonic()
                waiting_since = waiting_since or now
                if now - waiting_since >= self._longest_wait_for_a_copy:
                    because = "a copy of it has been running all the time"
                    raise Released(because, after=EARLY_HOLD_SECONDS) from None
            yield from self._wait(facts, pause)
            pause = min(2 * pause, COPY_POLL_LIMIT)
            steps = self._judge(facts)

    @property
    def _longest_wait_for_a_copy(self) -> float:
        hold_for = self._settings.hold_for
        return (
            hold_for
            if self._components.redeliver is None
            else min(hold_for, EARLY_HOLD_SECONDS)
        )

    def _pass_over(self, facts: MessageFacts) -> Outcome:
        """Skip a copy, and confirm it in case its process died before that."""
        if facts.redrive_id and facts.redrive:
            self._confirm(facts.redrive)
            self._settle_redrive(facts)
        return self._skip(facts, None)

    def _judge(self, facts: MessageFacts) -> Steps:
        record = self._record(facts)
        now = self._components.clock()
        since = self._waiting_since(facts, record)
        if since is not None and self._policy.is_expired(since, at=min(self._times())):
            return (yield from self._poison(facts, Cause.EXPIRED, record))
        skip = facts.skip(self._components.skips)
        if skip is not None:
            return self._skip(facts, skip)
        if self._is_copy(facts):
            return self._skip(facts, None)
        if self._was_poisoned(facts):
            log.info("%s is handed out again, and is poison", self._name(facts))
            return Outcome.POISONED
        if record is not None:
            cause = self._decided(record)
            if cause is not None:
                yield from self._hold_while_paused(facts)
                return (yield from self._poison(facts, cause, record))
            yield from self._until_due(facts, record.wait(now).total_seconds())
        return (yield from self._start(facts, record))

    def _start_journal(self) -> None:
        """Open a forked child's journal, so that deaths are known before lookups."""
        self._journal.reopen()
        self._components.gate.open(BEFORE_FIRST_MESSAGE)

    # Records of earlier attempts

    def _record(self, facts: MessageFacts) -> Record | None:
        if facts.number not in self._attempts.suspects:
            return None
        now = self._components.clock()
        return self._attempts.of(facts.identity, facts.number, now=now)

    def _was_poisoned(self, facts: MessageFacts) -> bool:
        """Tell whether a process gave it up and died before settling it."""
        # Not `given_up`: another process may have given it up since the last refresh,
        # and removed its record.
        if facts.number not in self._attempts.suspects or facts.redrive_id:
            return False
        now = self._components.clock()
        return self._attempts.is_poisoned(self._poisoned_as(facts), now=now)

    def _waiting_since(
        self, facts: MessageFacts, record: Record | None
    ) -> datetime | None:
        if record is not None and record.failures:
            return record.first_enqueued_at or record.first_failed_at
        return facts.enqueued_at

    def _decided(self, record: Record) -> Cause | None:
        """Return the cause if its record already makes the message poison."""
        if record.crashes >= self._settings.crash_limit:
            return record.crash or Cause.CRASH
        # Crashes alone never exhaust the attempts: the message may not be the cause.
        if record.failures and record.attempts >= self._policy.max_attempts:
            return Cause.EXHAUSTED
        return None

    def _is_copy(self, facts: MessageFacts) -> bool:
        redrive = facts.redrive_id
        if redrive is None:
            return False
        return self._attempts.is_redrive_settled(facts.message_id or "", redrive)

    def _skip(self, facts: MessageFacts, skip: Skip | None) -> Outcome:
        if skip is not None:
            self._components.skips.applied(skip)
        else:
            log.info("%s is a copy of one that is settled", self._name(facts))
        self._reporter.count(self.key, skipped=1)
        if facts.number not in self._attempts.given_up:
            self._forget(facts)
        return Outcome.SKIPPED

    # Running the handler

    def _start(self, facts: MessageFacts, record: Record | None) -> Steps:
        if facts.unreadable is not None:
            return (yield from self._undecodable(facts, record, facts.unreadable))
        if (yield from self._passes_as_probe(facts)):
            return (yield from self._probe(facts, record))
        error = yield from self._attempt(facts, record)
        return (yield from self._go_on(facts, record, error))

    def _go_on(
        self, facts: MessageFacts, record: Record | None, error: Exception | None
    ) -> Steps:
        """Retry in place until the message is handled or given up."""
        while error is not None:
            decision, record = self._charge(facts, record, error)
            yield from self._call_on_first_failure(facts, error)
            if decision is not RetryDecision.RETRY:
                self._remember(facts, error)
                return (yield from self._give_up(facts, _CAUSES[decision], record))
            log.info("%s failed and is tried again: %.1000r", self._name(facts), error)
            self._reporter.count(self.key, retried=1)
            wait = record.wait(self._components.clock()).total_seconds()
            if self._is_redelivered(facts):
                raise Released(f"it is due in {wait:.1f} s", after=wait)
            yield from self._wait_for_retry(facts, wait)
            error = yield from self._attempt(facts, record)
        return self._handled(facts)

    def _undecodable(
        self, facts: MessageFacts, record: Record | None, error: Exception
    ) -> Steps:
        """Give up, without running it, a message that the reader cannot identify."""
        log.error(
            "%s cannot be read by %s: %r; give the guard a reader of your client",
            self._name(facts),
            type(facts.reader).__name__,
            error,
        )
        if facts.is_described and not facts.reader.replays:
            # Only its broker has the content: do not let it be settled there.
            with suppress(Released):
                yield from self._pause_after_refusal(facts)
            remedy = "nothing of it can be kept but what it looks like"
            raise Released(remedy, after=REFUSAL_PAUSE)
        yield from self._hold_while_paused(facts)
        _, record = self._charge(facts, record, error)
        self._remember(facts, error)
        return (yield from self._give_up(facts, Cause.UNDECODABLE, record))

    def _attempt(
        self, facts: MessageFacts, record: Record | None
    ) -> Generator[Step, Any, Exception | None]:
        """Run the handler once; return its exception if the message failed."""
        alone = facts if record is not None and record.must_run_alone else None
        try:
            slot = yield from self._take_slot(facts, alone)
            return (yield from self._run(facts, slot))
        finally:
            self._slots.give_up(alone)

    def _take_slot(
        self, facts: MessageFacts, alone: MessageFacts | None
    ) -> Generator[Step, Any, Slot]:
        until = time.monotonic() + self._settings.hold_for
        while (slot := self._slots.take(alone=alone)) is None:
            if time.monotonic() >= until:
                raise Released("others have been running all the time")
            yield from self._wait(facts, POLL_SECONDS)
        return slot

    def _run(
        self, facts: MessageFacts, slot: Slot
    ) -> Generator[Step, Any, Exception | None]:
        self._journal.beat(slot.place)
        started = time.perf_counter()
        self._journal.words[slot.place] = facts.number
        try:
            yield RUN
        except BaseException as error:  # noqa: BLE001 - `_failure` reraises others
            return self._failure(facts, error)
        finally:
            self._journal.words[slot.place] = 0
            self._slots.give_back(slot)
        slot.handled += 1
        self._components.counts.seconds.append(time.perf_counter() - started)
        return None

    def _caught(self, facts: MessageFacts, slot: Slot, error: BaseException) -> Steps:
        try:
            failure = self._failure(facts, error)
        finally:
            self._journal.words[slot.place] = 0
            self._slots.give_back(slot)
        return (yield from self._go_on(facts, None, failure))

    def _failure(self, facts: MessageFacts, error: BaseException) -> Exception:
        """Return a failure of the message; reraise what ends the process or task."""
        if isinstance(error, Exception):
            return error
        if isinstance(error, SystemExit) and not self._components.leaving.is_set():
            self._crashed(facts, error)
        raise error

    def _crashed(self, facts: MessageFacts, error: SystemExit) -> None:
        """Count the end of this process as the message's crash, and end the process."""
        reason = f"The handler called sys.exit({error.code!r})"
        log.error("%s ends this process: %s", self._name(facts), reason)
        with _tolerating_a_full_disk():
            now = self._components.clock()
            self._attempts.crashed(facts.number, now=now, reason=reason)
        if threading.current_thread() is not threading.main_thread():
            # On other threads, SystemExit ends only the thread. The crash is counted
            # already: the next start must not count it again.
            self._journal.stopping()
            self._components.end_process(error.code)

    def _charge(
        self, facts: MessageFacts, record: Record | None, error: Exception
    ) -> tuple[RetryDecision, Record]:
        """Record a failure durably, and decide what comes next."""
        now = self._components.clock()
        attempts = 1 + (record.attempts if record else 0)
        before = record.due_at - record.failed_at if record and record.due_at else None
        delay = self._policy.delay(
            attempts, before=before.total_seconds() if before else None
        )
        due_in = timedelta(seconds=delay)
        since = self._waiting_since(facts, record) or max(self._times())
        decision = self._policy.judge(
            error,
            attempts=attempts,
            due_at=min(self._times()) + due_in,
            first_enqueued_at=since,
        )
        return decision, self._attempts.failed(
            facts.identity,
            facts.number,
            now=now,
            due_at=now + due_in if decision is RetryDecision.RETRY else None,
            first_enqueued_at=since,
        )

    def _call_on_first_failure(
        self, facts: MessageFacts, error: Exception
    ) -> Generator[Step, Any, None]:
        tell = self._policy.on_first_failure
        if tell is None:
            return
        # Marked before the call: it is made at most once, whatever happens between.
        if self._attempts.mark_first_failure(
            facts.identity, now=self._components.clock()
        ):
            yield from self._call_application(
                facts, partial(tell, facts.message, error)
            )

    def _handled(self, facts: MessageFacts) -> Outcome:
        self._forget(facts)
        self._components.counts.recent.append(facts.number)
        if facts.redrive_id and facts.redrive:
            self._confirm(facts.redrive)
            self._settle_redrive(facts)
        return Outcome.HANDLED

    def _confirm(self, redrive: str) -> None:
        confirmation = Confirmation(
            redrive=redrive,
            topic=self._settings.topic,
            consumer_group=self._settings.consumer_group,
            client_name=self._settings.client_name,
            at=self._components.clock(),
        )
        with _tolerating_a_full_disk():
            self._reporter.confirm(confirmation)

    # Waiting

    def _is_redelivered(self, facts: MessageFacts) -> bool:
        """Tell whether the broker can delay the message, and we recognise it later.

        Without that, its failures would be counted from zero each time.
        """
        has_identity = self._components.reader.has_identity(facts.message)
        return self._components.redeliver is not None and has_identity

    def _until_due(
        self, facts: MessageFacts, seconds: float
    ) -> Generator[Step, Any, None]:
        """Wait with a message that was delivered before its retry is due."""
        # Hold it for a moment: with a broker that ignores delays we would spin.
        later = seconds - EARLY_HOLD_SECONDS if self._is_redelivered(facts) else 0.0
        yield from self._wait_for_retry(
            facts, min(seconds, EARLY_HOLD_SECONDS) if later > 0 else seconds
        )
        if later > 0:
            raise Released(f"it is due in {later:.1f} s", after=later)

    def _wait_for_retry(
        self, facts: MessageFacts, seconds: float
    ) -> Generator[Step, Any, None]:
        self.retrying.add(facts)
        try:
            yield from self._wait(facts, seconds)
        finally:
            self.retrying.discard(facts)

    def _wait(self, facts: MessageFacts, seconds: float) -> Generator[Step, Any, None]:
        """Wait, and keep the message alive; release it when the process stops."""
        until = time.monotonic() + seconds
        while (remaining := until - time.monotonic()) > 0:
            if self._components.leaving.is_set():
                raise Released("this process is to stop")
            every = self._settings.keep_alive_every
            yield Wait(min(remaining, every))
            if time.monotonic() - facts.kept_alive_at >= every:
                self._keep_alive(facts)

    def _keep_alive(self, facts: MessageFacts) -> None:
        facts.kept_alive_at = time.monotonic()
        if self._components.keep_alive is not None:
            self._components.keep_alive(facts.message)

    # The breaker

    def _passes_as_probe(self, facts: MessageFacts) -> Generator[Step, Any, bool]:
        """Wait while the breaker is open; return whether this message is its probe."""
        until = time.monotonic() + self._settings.hold_for
        while (turn := self._breaker.admit()).wait:
            remaining = until - time.monotonic()
            if remaining <= 0:
                raise Released(f"the guard is paused: {self._breaker.reason}")
            yield from self._wait(facts, min(turn.wait, remaining))
        if not turn.is_probe:
            self._components.gate.open("breaker")
        return turn.is_probe

    def _hold_while_paused(self, facts: MessageFacts) -> Generator[Step, Any, None]:
        """Wait while the breaker is open, with a message that may not probe it."""
        until = time.monotonic() + self._settings.hold_for
        while self._breaker.state is not BreakerState.CLOSED:
            remaining = until - time.monotonic()
            if remaining <= 0:
                raise Released(f"the guard is paused: {self._breaker.reason}")
            yield from self._wait(facts, min(PROBE_POLL_SECONDS, remaining))

    def _probe(self, facts: MessageFacts, record: Record | None) -> Steps:
        handled: bool | None = None
        try:
            error = yield from self._attempt(facts, record)
            handled = error is None
        finally:
            self._breaker.probed(handled=handled)
        if error is not None:
            raise Released(
                f"the guard stays paused, its probe failed too: {error!r:.1000}"
            )
        log.warning("the guard goes on: its probe was handled")
        self._components.gate.open("breaker")
        return self._handled(facts)

    # Giving up

    def _give_up(self, facts: MessageFacts, cause: Cause, record: Record) -> Steps:
        # A requeued message that fails again says nothing about this process.
        if facts.redrive_id is None and self._breaker.failed():
            self._components.gate.close("breaker")
            log.error("the guard is paused: %s", self._breaker.reason)
            if not record.crashes:
                # When all messages fail, forget their failures: the consumer is sick.
                self._forget(facts)
            raise Released(f"the guard is paused: {self._breaker.reason}")
        return (yield from self._poison(facts, cause, record))

    def _poison(
        self, facts: MessageFacts, cause: Cause, record: Record | None
    ) -> Steps:
        """Report the message; it is poisoned once Poisonweb or the spool has it."""
        report = failure_report(
            facts,
            self._settings,
            cause=cause,
            record=record,
            raised=self._why(facts, record),
            suspected=self._is_suspected(facts, record),
            host=self._components.host,
            now=self._components.clock(),
        )
        self.holding.add(report.report_id)
        try:
            receipt = yield Call(partial(self._report, facts, report))
        finally:
            self.holding.discard(report.report_id)
        self._poisoned(facts, report, receipt)
        return Outcome.POISONED

    def _report(self, facts: MessageFacts, report: FailureReport) -> Receipt:
        return self._reporter.poison(
            report,
            when_away=self._settings.when_away,
            keep_alive=partial(self._keep_alive, facts),
            stop=self._components.leaving,
            hold_for=self._settings.hold_for,
        )

    def _why(self, facts: MessageFacts, record: Record | None) -> Raised | None:
        if record is not None and record.crashes >= self._settings.crash_limit:
            return raised_by_death(record)
        return self._raised.get(facts.identity)

    def _is_suspected(self, facts: MessageFacts, record: Record | None) -> bool:
        """Tell whether other consumers must not skip this new poison yet."""
        is_new = record is not None and facts.redrive_id is None
        return is_new and self._is_doubtful

    @property
    def _is_doubtful(self) -> bool:
        """Tell whether this process may be sick instead of the message."""
        return (
            not self._components.counts.total
            or self._breaker.in_a_row > SUSPECT_AFTER_FAILURES
        )

    def _remember(self, facts: MessageFacts, error: Exception) -> None:
        self._raised[facts.identity] = raised_by(error)
        while len(self._raised) > RAISED_LIMIT:
            del self._raised[next(iter(self._raised))]

    def _poisoned(
        self, facts: MessageFacts, report: FailureReport, receipt: Receipt
    ) -> None:
        if report.suspected:
            self._components.suspected_reports.add(
                report, handled=self._components.counts.total
            )
        if report.replays:
            self._components.skips.add_own(
                self._own_skip(facts, report, receipt.poison)
            )
        self._raised.pop(facts.identity, None)
        is_shared = not report.suspected and not receipt.spooled
        self._note_poisoned(facts, is_shared=is_shared, crashes=report.crashes)
        self._settle_redrive(facts)
        self._reporter.count(self.key, failed=1)
        log.warning("%s is poison (%s)", self._name(facts), report.cause)

    def _own_skip(
        self, facts: MessageFacts, report: FailureReport, poison: int | None
    ) -> Skip:
        return Skip(
            topic=report.topic,
            kind=MatcherKind.BOOKMARK,
            value=report.bookmark,
            consumer_group=report.consumer_group,
            handler_version=report.handler_version,
            reason=f"poison ({report.cause})",
            poison=poison,
            redrive=facts.redrive_id,
        )

    # Records

    def _times(self) -> tuple[datetime, datetime]:
        """Return the time by our clock and by the server's.

        Either may be set wrongly: a message has expired when both say so.
        """
        return self._components.clock(), self._components.server_clock()

    def _forget(self, facts: MessageFacts) -> None:
        if facts.number in self._attempts.suspects:
            with _tolerating_a_full_disk():
                self._attempts.forget(facts.identity, facts.number)

    def _note_poisoned(
        self, facts: MessageFacts, *, is_shared: bool, crashes: int
    ) -> None:
        """Remember a poison until it is settled or its skip has arrived."""
        reader = self._components.reader
        returns = reader.replays or reader.bookmarks_are_places
        is_skipped = reader.replays and is_shared
        # Without a record it could kill other processes here until its skip arrives.
        if facts.redrive_id or not returns or (is_skipped and not crashes):
            self._forget(facts)
            return
        with _tolerating_a_full_disk():
            self._attempts.poisoned(
                facts.identity,
                facts.number,
                bookmark=self._poisoned_as(facts),
                now=self._components.clock(),
                lasts=SKIP_COMES if is_skipped else UNSETTLED,
            )

    def _poisoned_as(self, facts: MessageFacts) -> str:
        """Return its key among the poisons; on topics that replay, per version."""
        version = self._settings.version
        if version is None or not self._components.reader.replays:
            return facts.bookmark
        return f"{version}\0{facts.bookmark}"

    def _settle_redrive(self, facts: MessageFacts) -> None:
        redrive = facts.redrive_id
        if redrive is not None:
            with _tolerating_a_full_disk():
                self._attempts.mark_redrive_settled(
                    facts.message_id or "", redrive, now=self._components.clock()
                )

    def _name(self, facts: MessageFacts) -> str:
        return f"message {facts.bookmark[:200]!r} of {self._settings.topic}"


@contextmanager
def _tolerating_a_full_disk() -> Iterator[None]:
    """Go on when the disk is full: the message is done, and must not run again."""
    try:
        yield
    except Full as reason:
        log.error("%s", reason)  # noqa: TRY400 - it says what to do
