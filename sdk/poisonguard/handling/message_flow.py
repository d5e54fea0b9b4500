"""What becomes of one message, from its arrival to its outcome.

The healthy path (`hot_path`) does the ordinary message without coming here.
Here is everything else, in this order: has it expired, is it to be skipped, is it a
copy of a redriven message, has it killed too many processes already, is the breaker
closed, may it run beside others; then it runs, as often as the policy says.
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
from poisonguard.handling.breaker import BESIDE_PROBE, Breaker, BreakerState
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
from poisonguard.server.reporter import Receipt, Reporter
from poisonguard.settings import Settings
from poisonguard.skipping.skip_list import SkipList

log = logging.getLogger(__name__)

# Without a success since so many failures, a process does not know who is sick.
DOUBTFUL_AFTER = 10
# Of more messages than these that wait to be reported, the oldest lose their traceback.
MOST_RAISED = 1_000
AT_ONCE = 1.0  # seconds, for a message that came before its time
AFTER_NO_ROOM = 1.0  # seconds, before a message that cannot be kept is tried again
LOOK_AGAIN = 0.01  # seconds, for a slot or a turn
LONGEST_LOOK = 0.2  # seconds, between looks whether a copy is done
AFTER_REFUSAL = 5.0  # seconds, or a broker that returns it at once makes us spin
FIRST = "first"  # why the gate of a process is closed until its first message

_CAUSES = {
    RetryDecision.FATAL: Cause.FATAL,
    RetryDecision.EXHAUSTED: Cause.EXHAUSTED,
    RetryDecision.EXPIRED: Cause.EXPIRED,
}


class Released(Exception):
    """The message goes back to the broker, to come again after some seconds."""

    def __init__(self, reason: str, *, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


@dataclass(kw_only=True, slots=True)
class GuardComponents:
    """What one guard consists of."""

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
    """Brings messages to their outcomes; shared by all threads and tasks of a guard."""

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
        """Know of nothing yet."""
        self.holding: set[UUID] = set()  # the reports that wait to be taken
        self.retrying: set[MessageFacts] = (
            set()
        )  # those that wait for their retry in place
        # Why those failed that are given up but not reported yet, for when they return.
        self._raised: dict[bytes, Raised] = {}

    def steps(self, message: object, handler: Callable[[Any], Any]) -> Steps:
        """Handle a message that has just come."""
        facts = MessageFacts(self._components.reader, message, handler)
        return self._released_on_trouble(facts, self._arrived(facts))

    def steps_after(
        self,
        message: object,
        handler: Callable[[Any], Any],
        slot: Slot,
        error: BaseException,
    ) -> Steps:
        """Go on with a message at what its handler raised on the healthy path."""
        facts = MessageFacts(self._components.reader, message, handler)
        steps = self._once(facts, self._caught(facts, slot, error))
        return self._released_on_trouble(facts, steps)

    def again(self) -> ReleasedMessage | None:
        """Take a message that was kept, to be run on its consumer's thread."""
        if (
            self._breaker.state is not BreakerState.CLOSED
            or self._components.closed.is_set()
        ):
            return None
        return self._released_messages.take(needs_handler=True)

    def steps_again(self, entry: ReleasedMessage) -> Steps:
        """Try a message once more that was released, and kept by the guard."""
        facts = MessageFacts(self._components.reader, entry.message, entry.handler)
        try:
            outcome = yield from self._look_up(facts)
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
            yield from self._tell(
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
                after = AFTER_REFUSAL
                log.error(  # noqa: TRY400 - the server says why
                    "%s cannot be reported: %s", self._name(facts), reason
                )
                with suppress(Released):
                    yield from self._pause_after_refusal(facts)
            except Misconfigured as reason:
                # There is no telling which message it is: keep none.
                log.error(  # noqa: TRY400 - it says what to do
                    "a message is released, unsettled: %s", reason
                )
                return Outcome.RELEASE
            except GuardError as reason:
                after = AFTER_REFUSAL
                log.warning("%s is released, unsettled: %s", self._name(facts), reason)
            if (yield from self._release(facts, after)):
                return Outcome.RELEASE
            steps = self._look_up(facts)

    def _pause_after_refusal(self, facts: MessageFacts) -> Generator[Step, Any, None]:
        if self._components.redeliver is None and not self._components.reader.replays:
            pause = min(AFTER_REFUSAL, self._settings.hold_for)
            yield from self._wait(facts, pause)

    def _release(self, facts: MessageFacts, after: float) -> Generator[Step, Any, bool]:
        """See that a message is tried again, as far as that is ours.

        Answers False where it would have to be kept, and there is no room: then it is
        held, and no message behind it is taken meanwhile.
        """
        redeliver, leaving = self._components.redeliver, self._components.leaving
        if redeliver is not None:
            call = partial(redeliver, facts.message, after)
            yield from self._tell(facts, call)
            return True
        # Of a process that is to stop, the next one reads the topic anew.
        if not self._components.reader.replays or leaving.is_set() or self._keep(facts):
            return True
        with suppress(Released):
            yield from self._wait(facts, AFTER_NO_ROOM)
        return False

    def _keep(self, facts: MessageFacts) -> bool:
        entry = ReleasedMessage(
            bookmark=facts.bookmark,
            message=self._components.reader.copy(facts.message),
            handler=facts.handler,
            size=len(facts.body),
        )
        return self._released_messages.add(entry)

    def _tell(
        self, facts: MessageFacts, call: Callable[[], object]
    ) -> Generator[Step, Any, None]:
        """Call back to the application; what goes wrong there is logged."""
        try:
            yield Call(call)
        except Exception:
            log.exception("a call back for %s failed", self._name(facts))

    def _arrived(self, facts: MessageFacts) -> Steps:
        if self._components.closed.is_set():
            raise Released("the guard is closed")
        if self._components.gate.is_closed_by(FIRST):
            # By now the application has set its handlers, maybe on this very thread.
            SIGTERM.look()
            yield Call(self._start_journal)
        while not self._released_messages.discard_unless_busy(facts.bookmark):
            yield from self._wait(facts, LOOK_AGAIN)
        return (yield from self._look_up(facts))

    def _look_up(self, facts: MessageFacts) -> Steps:
        return self._once(facts, self._judge(facts))

    def _once(self, facts: MessageFacts, steps: Steps) -> Steps:
        """Wait while a copy of the message is handled, and pass over what was."""
        waiting_since, pause = None, LOOK_AGAIN
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
                raise Released(str(reason), after=AFTER_REFUSAL) from None
            except Busy:
                now = time.monotonic()
                waiting_since = waiting_since or now
                if now - waiting_since >= self._longest_wait_for_a_copy:
                    because = "a copy of it has been running all the time"
                    raise Released(because, after=AT_ONCE) from None
            yield from self._wait(facts, pause)
            pause = min(2 * pause, LONGEST_LOOK)
            steps = self._judge(facts)

    @property
    def _longest_wait_for_a_copy(self) -> float:
        hold_for = self._settings.hold_for
        return (
            hold_for if self._components.redeliver is None else min(hold_for, AT_ONCE)
        )

    def _pass_over(self, facts: MessageFacts) -> Outcome:
        """Settle a copy; whoever handled it may have died before it could say so."""
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
        """In a forked child, know who died before a message is looked up."""
        self._journal.reopen()
        self._components.gate.open(FIRST)

    # What is known already

    def _record(self, facts: MessageFacts) -> Record | None:
        if facts.number not in self._attempts.suspects:
            return None
        now = self._components.clock()
        return self._attempts.of(facts.identity, facts.number, now=now)

    def _was_poisoned(self, facts: MessageFacts) -> bool:
        """Tell whether we have given it up before, and died before it was settled."""
        # Not `given_up`: another process may have given it up since we looked last, and
        # with that word the record of it is gone.
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
        """Tell what the message is poison of, before it is run once more."""
        if record.crashes >= self._settings.crash_limit:
            return record.crash or Cause.CRASH
        # Who only died may be innocent: that alone never uses the attempts up.
        if record.failures and record.attempts >= self._policy.max_attempts:
            return Cause.EXHAUSTED
        return None

    def _is_copy(self, facts: MessageFacts) -> bool:
        redrive = facts.redrive_id
        if redrive is None:
            return False
        return self._attempts.redrive_seen(facts.message_id or "", redrive)

    def _skip(self, facts: MessageFacts, skip: Skip | None) -> Outcome:
        if skip is not None:
            self._components.skips.applied(skip)
        else:
            log.info("%s is a copy of one that is settled", self._name(facts))
        self._reporter.count(self.key, skipped=1)
        if facts.number not in self._attempts.given_up:
            self._forget(facts)
        return Outcome.SKIPPED

    # Running it

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
            yield from self._tell_first(facts, error)
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
        """Give up, without running it, what the reader cannot tell from others."""
        log.error(
            "%s cannot be read by %s: %r; give the guard a reader of your client",
            self._name(facts),
            type(facts.reader).__name__,
            error,
        )
        if facts.is_described and not facts.reader.replays:
            # Settled at its broker, what the message held would be nowhere.
            with suppress(Released):
                yield from self._pause_after_refusal(facts)
            remedy = "nothing of it can be kept but what it looks like"
            raise Released(remedy, after=AFTER_REFUSAL)
        yield from self._hold_while_paused(facts)
        _, record = self._charge(facts, record, error)
        self._remember(facts, error)
        return (yield from self._give_up(facts, Cause.UNDECODABLE, record))

    def _attempt(
        self, facts: MessageFacts, record: Record | None
    ) -> Generator[Step, Any, Exception | None]:
        """Run the handler once; return what it raised, if that was a failure."""
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
            yield from self._wait(facts, LOOK_AGAIN)
        return slot

    def _run(
        self, facts: MessageFacts, slot: Slot
    ) -> Generator[Step, Any, Exception | None]:
        self._journal.beat(slot.place)
        started = time.perf_counter()
        self._journal.words[slot.place] = facts.number
        try:
            yield RUN
        except BaseException as error:  # noqa: BLE001 - raises what is no failure
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
        """Return what is the message's failure; raise what ends the process or task."""
        if isinstance(error, Exception):
            return error
        if isinstance(error, SystemExit) and not self._components.leaving.is_set():
            self._crashed(facts, error)
        raise error

    def _crashed(self, facts: MessageFacts, error: SystemExit) -> None:
        """Charge the message with the end of this process, and see that it ends."""
        reason = f"The handler called sys.exit({error.code!r})"
        log.error("%s ends this process: %s", self._name(facts), reason)
        with _tolerating_a_full_disk():
            now = self._components.clock()
            self._attempts.crashed(facts.number, now=now, reason=reason)
        if threading.current_thread() is not threading.main_thread():
            # There SystemExit ends one thread, and leaves a zombie behind. It is known
            # who is to blame: the next start has nobody to look for.
            self._journal.stopping()
            self._components.end_process(error.code)

    def _charge(
        self, facts: MessageFacts, record: Record | None, error: Exception
    ) -> tuple[RetryDecision, Record]:
        """Count a failure for good, and judge what comes next."""
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

    def _tell_first(
        self, facts: MessageFacts, error: Exception
    ) -> Generator[Step, Any, None]:
        tell = self._policy.on_first_failure
        if tell is None:
            return
        # Marked before it is told: at most once, whatever happens in between.
        if self._attempts.told_first(facts.identity, now=self._components.clock()):
            yield from self._tell(facts, partial(tell, facts.message, error))

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
        """Tell whether its broker hands it out again at its time, and we know it then.

        Otherwise its failures would be counted from the beginning each time.
        """
        has_identity = self._components.reader.has_identity(facts.message)
        return self._components.redeliver is not None and has_identity

    def _until_due(
        self, facts: MessageFacts, seconds: float
    ) -> Generator[Step, Any, None]:
        """Wait for the time of a retry with a message that came before it."""
        # Not at once again, or a broker that heeds no delay makes us spin.
        later = seconds - AT_ONCE if self._is_redelivered(facts) else 0.0
        yield from self._wait_for_retry(
            facts, min(seconds, AT_ONCE) if later > 0 else seconds
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
        """Let time pass and keep the message alive; release it if we are to stop."""
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
        """Wait while the breaker is open; tell whether this message is its probe."""
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
        """Wait while the breaker is open, with a message that cannot be its probe."""
        until = time.monotonic() + self._settings.hold_for
        while self._breaker.state is not BreakerState.CLOSED:
            remaining = until - time.monotonic()
            if remaining <= 0:
                raise Released(f"the guard is paused: {self._breaker.reason}")
            yield from self._wait(facts, min(BESIDE_PROBE, remaining))

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

    # Giving it up

    def _give_up(self, facts: MessageFacts, cause: Cause, record: Record) -> Steps:
        # That a message fails again after a requeue says nothing about this process.
        if facts.redrive_id is None and self._breaker.failed():
            self._components.gate.close("breaker")
            log.error("the guard is paused: %s", self._breaker.reason)
            if not record.crashes:
                # Where all fail, it is not for the messages to pay.
                self._forget(facts)
            raise Released(f"the guard is paused: {self._breaker.reason}")
        return (yield from self._poison(facts, cause, record))

    def _poison(
        self, facts: MessageFacts, cause: Cause, record: Record | None
    ) -> Steps:
        """Have the message kept by Poisonweb; only then it is poisoned."""
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
        """Tell whether others are not to skip a new poison yet."""
        is_new = record is not None and facts.redrive_id is None
        return is_new and self._is_doubtful

    @property
    def _is_doubtful(self) -> bool:
        """Tell whether this process may be what is sick, and not the message."""
        return (
            not self._components.counts.total or self._breaker.in_a_row > DOUBTFUL_AFTER
        )

    def _remember(self, facts: MessageFacts, error: Exception) -> None:
        self._raised[facts.identity] = raised_by(error)
        while len(self._raised) > MOST_RAISED:
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
        """Give the time by our clock and by the server's.

        One of them may have been set wrongly: a message has expired where both say so.
        """
        return self._components.clock(), self._components.server_clock()

    def _forget(self, facts: MessageFacts) -> None:
        if facts.number in self._attempts.suspects:
            with _tolerating_a_full_disk():
                self._attempts.forget(facts.identity, facts.number)

    def _note_poisoned(
        self, facts: MessageFacts, *, is_shared: bool, crashes: int
    ) -> None:
        """Know it again while neither its settling nor a skip keeps it from us."""
        reader = self._components.reader
        returns = reader.replays or reader.bookmarks_are_places
        is_skipped = reader.replays and is_shared
        # Until its skip has come to them, it would kill the other processes here.
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
        """Name it among the poisons: where it is there again, of this version alone."""
        version = self._settings.version
        if version is None or not self._components.reader.replays:
            return facts.bookmark
        return f"{version}\0{facts.bookmark}"

    def _settle_redrive(self, facts: MessageFacts) -> None:
        redrive = facts.redrive_id
        if redrive is not None:
            with _tolerating_a_full_disk():
                self._attempts.redrive_done(
                    facts.message_id or "", redrive, now=self._components.clock()
                )

    def _name(self, facts: MessageFacts) -> str:
        return f"message {facts.bookmark[:200]!r} of {self._settings.topic}"


@contextmanager
def _tolerating_a_full_disk() -> Iterator[None]:
    """Go on: the message was done with, and saying so must not have it done again."""
    try:
        yield
    except Full as reason:
        log.error("%s", reason)  # noqa: TRY400 - it says what to do
