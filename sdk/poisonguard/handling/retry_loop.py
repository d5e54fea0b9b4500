"""Run the handler of a message as often as the policy says."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import suppress
from typing import Any

from poisonguard.contract import Cause
from poisonguard.handling.circuit_breaker_hold_and_probe import GuardPause
from poisonguard.handling.earlier_attempt_records import MessageRecords
from poisonguard.handling.given_up_messages import GivenUpMessages
from poisonguard.handling.guard_components import GuardComponents
from poisonguard.handling.handler_execution import HandlerRuns
from poisonguard.handling.lazy_message_facts import MessageFacts
from poisonguard.handling.optional_application_callbacks import Application
from poisonguard.handling.redriven_messages import RedrivenMessages
from poisonguard.handling.step_types_and_thread_runner import Step, Steps
from poisonguard.handling.waiting_with_undecided_message import (
    REFUSAL_PAUSE,
    Released,
    Waits,
)
from poisonguard.journal.failed_attempts_record import Record
from poisonguard.outcome import Outcome
from poisonguard.policy import RetryDecision

log = logging.getLogger(__name__)

_CAUSES = {
    RetryDecision.FATAL: Cause.FATAL,
    RetryDecision.EXHAUSTED: Cause.EXHAUSTED,
    RetryDecision.EXPIRED: Cause.EXPIRED,
}


class RetryLoop:
    """Run and retry a message until it is handled, given up or released."""

    def __init__(  # noqa: PLR0913 - each a collaborator
        self,
        components: GuardComponents,
        *,
        application: Application,
        given_up: GivenUpMessages,
        pause: GuardPause,
        records: MessageRecords,
        redriven: RedrivenMessages,
        runs: HandlerRuns,
        waits: Waits,
    ) -> None:
        self._reporter = components.reporter
        self._counter_key = components.counter_key
        self._recent = components.counts.recent
        self._application = application
        self._given_up = given_up
        self._pause = pause
        self._records = records
        self._redriven = redriven
        self._runs = runs
        self._waits = waits

    def start(self, facts: MessageFacts, record: Record | None) -> Steps:
        """Run a message's handler and retry it; as the breaker's probe, only once."""
        if facts.unreadable is not None:
            return (yield from self._give_up_unread(facts, record, facts.unreadable))
        if (yield from self._pause.passes_as_probe(facts)):
            yield from self._pause.probe(self._runs.attempt(facts, record))
            return self._finish_handled(facts)
        error = yield from self._runs.attempt(facts, record)
        return (yield from self.go_on(facts, record, error))

    def go_on(
        self, facts: MessageFacts, record: Record | None, error: Exception | None
    ) -> Steps:
        """Retry a message in place until it is handled or given up; return its outcome.

        Raise Released for a broker that delays the retry itself.
        """
        while error is not None:
            decision, record = self._records.charge(facts, record, error)
            yield from self._announce_first_failure(facts, error)
            if decision is not RetryDecision.RETRY:
                self._given_up.remember(facts, error)
                cause = _CAUSES[decision]
                return (yield from self._given_up.give_up(facts, cause, record))
            log.info("%s failed and is tried again: %.1000r", facts.name, error)
            self._reporter.count(self._counter_key, retried=1)
            wait = self._records.seconds_until_due(record)
            if self._application.redelivers_known(facts):
                raise Released(f"it is due in {wait:.1f} s", after=wait)
            yield from self._waits.for_retry(facts, wait)
            error = yield from self._runs.attempt(facts, record)
        return self._finish_handled(facts)

    def _give_up_unread(
        self, facts: MessageFacts, record: Record | None, error: Exception
    ) -> Steps:
        """Give up, unhandled, a message that the reader cannot identify.

        Raise Released if only its broker has its content.
        """
        log.error(
            "%s cannot be read by %s: %r; give the guard a reader of your client",
            facts.name,
            type(facts.reader).__name__,
            error,
        )
        if facts.is_described and not facts.reader.replays:
            # Only its broker has the content: do not let it be settled there.
            with suppress(Released):
                yield from self._waits.after_refusal(facts)
            remedy = "nothing of it can be kept but what it looks like"
            raise Released(remedy, after=REFUSAL_PAUSE)
        yield from self._pause.hold(facts)
        _, record = self._records.charge(facts, record, error)
        self._given_up.remember(facts, error)
        return (yield from self._given_up.give_up(facts, Cause.UNDECODABLE, record))

    def _announce_first_failure(
        self, facts: MessageFacts, error: Exception
    ) -> Generator[Step, Any, None]:
        """Call the application at the first failure of a message, once."""
        # Marked before the call: it is made at most once, whatever happens between.
        if self._application.hears_first_failures and self._records.mark_first_failure(
            facts
        ):
            yield from self._application.announce_failure(facts, error)

    def _finish_handled(self, facts: MessageFacts) -> Outcome:
        """Forget a handled message's record and confirm its redrive; return HANDLED."""
        self._records.forget(facts)
        self._recent.append(facts.number)
        self._redriven.confirm(facts)
        return Outcome.HANDLED
