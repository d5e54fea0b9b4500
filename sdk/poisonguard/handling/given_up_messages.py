"""Report messages that are given up: then they are poison."""

from __future__ import annotations

import logging
from functools import partial
from uuid import UUID

from poisonguard.contract import Cause, FailureReport, MatcherKind, Raised, Skip
from poisonguard.handling.circuit_breaker_hold_and_probe import GuardPause
from poisonguard.handling.earlier_attempt_records import MessageRecords
from poisonguard.handling.failure_report_building import (
    failure_report,
    raised_by,
    raised_by_death,
)
from poisonguard.handling.guard_components import GuardComponents
from poisonguard.handling.lazy_message_facts import MessageFacts
from poisonguard.handling.optional_application_callbacks import Application
from poisonguard.handling.redriven_messages import RedrivenMessages
from poisonguard.handling.step_types_and_thread_runner import BlockingCall, Steps
from poisonguard.journal.failed_attempts_record import Record
from poisonguard.outcome import Outcome
from poisonguard.server.failure_report_queue import Receipt

log = logging.getLogger(__name__)

# After so many failures in a row, the process itself may be what is sick.
SUSPECT_AFTER_FAILURES = 10
# With more messages waiting to be reported, the oldest lose their traceback.
RAISED_LIMIT = 1_000


class GivenUpMessages:
    """The messages that are given up, with their errors until they are reported.

    `holding` has the ids of the reports that wait for the server.
    """

    def __init__(
        self,
        components: GuardComponents,
        *,
        application: Application,
        pause: GuardPause,
        records: MessageRecords,
        redriven: RedrivenMessages,
    ) -> None:
        self._components = components
        self._settings = components.settings
        self._reporter = components.reporter
        self._counter_key = components.counter_key
        self._skips = components.skips
        self._suspected_reports = components.suspected_reports
        self._counts = components.counts
        self._breaker = components.breaker
        self._application = application
        self._pause = pause
        self._records = records
        self._redriven = redriven
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget given-up messages, the parent's, in a forked child."""
        self.holding: set[UUID] = set()
        self._raised: dict[bytes, Raised] = {}  # by the identity of the message

    def remember(self, facts: MessageFacts, error: Exception) -> None:
        """Keep the last error of a message until the message is reported."""
        self._raised[facts.identity] = raised_by(error)
        while len(self._raised) > RAISED_LIMIT:
            del self._raised[next(iter(self._raised))]

    def give_up(self, facts: MessageFacts, cause: Cause, record: Record) -> Steps:
        """Report a message that failed, or release it where the guard pauses."""
        # A requeued message that fails again says nothing about this process.
        if facts.redrive_id is None and self._pause.count_failure():
            if not record.crashes:
                # When all messages fail, forget their failures: the consumer is sick.
                self._records.forget(facts)
            raise self._pause.released_error()
        return (yield from self.report(facts, cause, record))

    def report(self, facts: MessageFacts, cause: Cause, record: Record | None) -> Steps:
        """Report a given-up message; return POISONED.

        The message is poison once the server or the spool has the report.
        """
        report = failure_report(
            facts,
            self._settings,
            cause=cause,
            record=record,
            raised=self._raised_for(facts, record),
            suspected=self._is_suspected(facts, record),
            host=self._components.host,
            now=self._components.clock(),
        )
        self.holding.add(report.report_id)
        try:
            receipt = yield BlockingCall(partial(self._send, facts, report))
        finally:
            self.holding.discard(report.report_id)
        self._after_report(facts, report, receipt)
        return Outcome.POISONED

    def _send(self, facts: MessageFacts, report: FailureReport) -> Receipt:
        """Send a message's failure report until durable; keep the message alive."""
        return self._reporter.poison(
            report,
            when_away=self._settings.when_away,
            keep_alive=partial(self._application.keep_alive, facts),
            stop=self._components.leaving,
            hold_for=self._settings.hold_for,
        )

    def _raised_for(self, facts: MessageFacts, record: Record | None) -> Raised | None:
        """Return the exception to report: a message's last, or a process's death."""
        if record is not None and record.crashes >= self._settings.crash_limit:
            return raised_by_death(record)
        return self._raised.get(facts.identity)

    def _is_suspected(self, facts: MessageFacts, record: Record | None) -> bool:
        """Tell whether to report a poison as suspected: not skipped elsewhere yet."""
        is_new = record is not None and facts.redrive_id is None
        return is_new and self._is_doubtful

    @property
    def _is_doubtful(self) -> bool:
        """Tell whether this process, not the message, may be at fault.

        So it may be if it has handled none, or fails many in a row.
        """
        return not self._counts.total or self._breaker.in_a_row > SUSPECT_AFTER_FAILURES

    def _after_report(
        self, facts: MessageFacts, report: FailureReport, receipt: Receipt
    ) -> None:
        """Skip a message after its failure report, remember and count its poison.

        Skip it by this guard's own skip only on a topic that replays. Keep a suspected
        report, to send it again as certain.
        """
        if report.suspected:
            self._suspected_reports.add(report, handled=self._counts.total)
        if report.replays:
            self._skips.add_own(_own_skip(facts, report, receipt.poison))
        self._raised.pop(facts.identity, None)
        is_shared = not report.suspected and not receipt.spooled
        self._records.mark_poison(facts, is_shared=is_shared, crashes=report.crashes)
        self._redriven.settle(facts)
        self._reporter.count(self._counter_key, failed=1)
        log.warning("%s is poison (%s)", facts.name, report.cause)


def _own_skip(facts: MessageFacts, report: FailureReport, poison: int | None) -> Skip:
    """Build the guard's own skip of a poison, until the server's list has it."""
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
