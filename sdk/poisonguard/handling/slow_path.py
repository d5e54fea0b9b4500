"""The slow path of one message, from its arrival to its outcome.

The healthy path (`healthy_path`) handles ordinary messages alone. The slow path checks,
in this order: has the message expired, is there a skip for it, is it a copy of a
redriven message, has it killed too many processes, is the breaker closed, may it run
beside others. Then it runs the handler, as often as the policy says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from poisonguard.contract import Cause
from poisonguard.errors import GuardError, Misconfigured, Refused
from poisonguard.handling.already_decided_messages import KnownMessages
from poisonguard.handling.circuit_breaker_hold_and_probe import GuardPause
from poisonguard.handling.duplicate_messages import MessageCopies
from poisonguard.handling.earlier_attempt_records import MessageRecords
from poisonguard.handling.given_up_messages import GivenUpMessages
from poisonguard.handling.guard_components import GuardComponents
from poisonguard.handling.handled_counts_and_durations import Slot
from poisonguard.handling.handler_execution import HandlerRuns
from poisonguard.handling.lazy_message_facts import MessageFacts
from poisonguard.handling.optional_application_callbacks import Application
from poisonguard.handling.redriven_messages import RedrivenMessages
from poisonguard.handling.released_messages_to_retry import (
    HandlerNeeded,
    ReleasedMessage,
)
from poisonguard.handling.retry_loop import RetryLoop
from poisonguard.handling.step_types_and_thread_runner import BlockingCall, Step, Steps
from poisonguard.handling.waiting_with_undecided_message import (
    POLL_SECONDS,
    REFUSAL_PAUSE,
    Released,
    Waits,
)
from poisonguard.outcome import Outcome
from poisonguard.processes.sigterm_handler import SIGTERM

__all__ = ["BEFORE_FIRST_MESSAGE", "GuardComponents", "MessageFlow"]

log = logging.getLogger(__name__)

NO_ROOM_PAUSE = 1.0  # seconds until a message that cannot be kept is tried again
# Why the gate of a process is closed until its first message.
BEFORE_FIRST_MESSAGE = "first"


class MessageFlow:
    """Decide the outcomes of messages; all threads and tasks of a guard share it."""

    def __init__(self, components: GuardComponents) -> None:
        self._components = components
        self._journal = components.journal
        self._gate = components.gate
        self._reader = components.reader
        self._topic = components.settings.topic
        self._released_messages = components.released_messages
        self._application = application = Application(components)
        self._waits = waits = Waits(components, application)
        self._pause = pause = GuardPause(components, waits)
        self._records = records = MessageRecords(components)
        redriven = RedrivenMessages(components)
        self._known_messages = KnownMessages(
            components, records=records, redriven=redriven
        )
        self._copies = MessageCopies(
            components,
            application=application,
            known_messages=self._known_messages,
            waits=waits,
        )
        self._runs = HandlerRuns(components, records=records, waits=waits)
        self._given_up = GivenUpMessages(
            components,
            application=application,
            pause=pause,
            records=records,
            redriven=redriven,
        )
        self._retries = RetryLoop(
            components,
            application=application,
            given_up=self._given_up,
            pause=pause,
            records=records,
            redriven=redriven,
            runs=self._runs,
            waits=waits,
        )

    def reset_after_fork(self) -> None:
        """Forget messages in progress, the parent's, in a forked child."""
        self._waits.reset_after_fork()
        self._given_up.reset_after_fork()

    @property
    def holding(self) -> int:
        """Return how many failure reports wait for the server."""
        return len(self._given_up.holding)

    @property
    def retrying(self) -> int:
        """Return how many messages wait for their retry in place."""
        return len(self._waits.retrying)

    def steps(self, message: object, handler: Callable[[Any], Any]) -> Steps:
        """Return the steps to decide a message that was just delivered."""
        facts = self._facts(message, handler)
        return self._release_on_trouble(facts, self._decide_arrival(facts))

    def failure_steps(
        self,
        message: object,
        handler: Callable[[Any], Any],
        slot: Slot,
        error: BaseException,
    ) -> Steps:
        """Return the steps for a message whose handler raised on the healthy path."""
        facts = self._facts(message, handler)
        steps = self._copies.once(
            facts, self._decide_failure(facts, slot, error), self._check_and_run
        )
        return self._release_on_trouble(facts, steps)

    def take_retry(self) -> ReleasedMessage | None:
        """Take a due released message, to retry it on the consumer's thread.

        Return None without one, or while the guard is paused or closed.
        """
        if not self._pause.is_over or self._components.closed.is_set():
            return None
        return self._released_messages.take(needs_handler=True)

    def retry_steps(self, entry: ReleasedMessage) -> Steps:
        """Return the steps to retry a message that the guard has kept."""
        facts = self._facts(entry.message, entry.handler)
        try:
            outcome = yield from self._decide(facts)
        except (Released, GuardError) as reason:
            log.info("%s waits on in the guard: %s", facts.name, reason)
            self._released_messages.give_back(entry, needs_handler=False)
            return Outcome.RELEASE
        except BaseException as error:
            self._released_messages.give_back(
                entry, needs_handler=isinstance(error, HandlerNeeded)
            )
            raise
        yield from self._application.settle(facts, outcome)
        self._released_messages.settled(entry)
        return outcome

    def _facts(self, message: object, handler: Callable[[Any], Any]) -> MessageFacts:
        """Return the facts of a message, of which none is read yet."""
        return MessageFacts(self._reader, message, handler, topic=self._topic)

    # Decisions

    def _decide_arrival(self, facts: MessageFacts) -> Steps:
        """Decide a message that the broker has delivered just now."""
        if self._components.closed.is_set():
            raise Released("the guard is closed")
        if self._gate.is_closed_by(BEFORE_FIRST_MESSAGE):
            # By now the application has set its signal handlers, maybe on this thread.
            SIGTERM.ensure_handler()
            yield BlockingCall(self._start_journal)
        while not self._released_messages.discard_unless_busy(facts.bookmark):
            yield from self._waits.pause(facts, POLL_SECONDS)
        return (yield from self._decide(facts))

    def _start_journal(self) -> None:
        """Open a forked child's journal, so that deaths are known before lookups."""
        self._journal.reopen()
        self._gate.open(BEFORE_FIRST_MESSAGE)

    def _decide_failure(
        self, facts: MessageFacts, slot: Slot, error: BaseException
    ) -> Steps:
        """Decide a message whose handler raised on the healthy path."""
        failure = self._runs.end_failed(facts, slot, error)
        return (yield from self._retries.go_on(facts, None, failure))

    def _decide(self, facts: MessageFacts) -> Steps:
        """Decide a message by the slow path's checks, once dedupe sees no copy run."""
        return self._copies.once(facts, self._check_and_run(facts), self._check_and_run)

    def _check_and_run(self, facts: MessageFacts) -> Steps:
        """Decide a message by the checks of the slow path, in their order.

        It may be expired, skipped or poison already; otherwise its handler runs.
        """
        record = self._records.record(facts)
        if self._records.is_expired(facts, record):
            return (yield from self._given_up.report(facts, Cause.EXPIRED, record))
        outcome = self._known_messages.outcome(facts)
        if outcome is not None:
            return outcome
        if record is not None:
            cause = self._records.final_cause(record)
            if cause is not None:
                yield from self._pause.hold(facts)
                return (yield from self._given_up.report(facts, cause, record))
            seconds = self._records.seconds_until_due(record)
            yield from self._waits.until_due(facts, seconds)
        return (yield from self._retries.start(facts, record))

    # Releases

    def _release_on_trouble(self, facts: MessageFacts, steps: Steps) -> Steps:
        """Go through a message's steps; on trouble release it, or decide it again."""
        while True:
            try:
                return (yield from steps)
            except Released as reason:
                after = reason.after
                log.info("%s is released: %s", facts.name, reason)
            except Refused as reason:
                after = REFUSAL_PAUSE
                log.error(  # noqa: TRY400 - the server says why
                    "%s cannot be reported: %s", facts.name, reason
                )
                with suppress(Released):
                    yield from self._waits.after_refusal(facts)
            except Misconfigured as reason:
                # The message cannot be identified: do not keep it.
                log.error(  # noqa: TRY400 - it says what to do
                    "a message is released, unsettled: %s", reason
                )
                return Outcome.RELEASE
            except GuardError as reason:
                after = REFUSAL_PAUSE
                log.warning("%s is released, unsettled: %s", facts.name, reason)
            if (yield from self._release(facts, after)):
                return Outcome.RELEASE
            steps = self._decide(facts)

    def _release(self, facts: MessageFacts, after: float) -> Generator[Step, Any, bool]:
        """Arrange that a message is tried again, where that is the guard's task.

        Return False where the guard should keep it but has no room: the caller then
        holds it, and takes no message behind it meanwhile.
        """
        if self._application.redelivers:
            yield from self._application.redeliver(facts, after)
            return True
        # After a stop, the next process reads the topic again.
        is_stopping = self._components.leaving.is_set()
        if not self._reader.replays or is_stopping or self._keep(facts):
            return True
        with suppress(Released):
            yield from self._waits.pause(facts, NO_ROOM_PAUSE)
        return False

    def _keep(self, facts: MessageFacts) -> bool:
        """Keep a copy of a released message for a retry; return False without room."""
        entry = ReleasedMessage(
            bookmark=facts.bookmark,
            message=self._reader.copy(facts.message),
            handler=facts.handler,
            size=len(facts.body),
        )
        return self._released_messages.add(entry)
