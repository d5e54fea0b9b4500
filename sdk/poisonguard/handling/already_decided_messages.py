"""Recognise messages whose outcome does not depend on their handler any more."""

from __future__ import annotations

import logging

from poisonguard.contract import Skip
from poisonguard.handling.earlier_attempt_records import MessageRecords
from poisonguard.handling.guard_components import GuardComponents
from poisonguard.handling.lazy_message_facts import MessageFacts
from poisonguard.handling.redriven_messages import RedrivenMessages
from poisonguard.outcome import Outcome

log = logging.getLogger(__name__)


class KnownMessages:
    """The messages on the skip list, copies of settled redrives, and known poisons."""

    def __init__(
        self,
        components: GuardComponents,
        *,
        records: MessageRecords,
        redriven: RedrivenMessages,
    ) -> None:
        self._skips = components.skips
        self._reporter = components.reporter
        self._counter_key = components.counter_key
        self._records = records
        self._redriven = redriven

    def outcome(self, facts: MessageFacts) -> Outcome | None:
        """Return the outcome of a skipped, settled or poison message, or None."""
        skip = facts.skip(self._skips)
        if skip is not None:
            return self._skip(facts, skip)
        if self._redriven.is_copy(facts):
            return self._skip(facts, None)
        if self._records.was_poisoned(facts):
            log.info("%s is handed out again, and is poison", facts.name)
            return Outcome.POISONED
        return None

    def skip_copy(self, facts: MessageFacts) -> Outcome:
        """Skip a copy of a message; confirm its redrive in case that was lost."""
        self._redriven.confirm(facts)
        return self._skip(facts, None)

    def _skip(self, facts: MessageFacts, skip: Skip | None) -> Outcome:
        """Count a message as skipped, forget its failures; return SKIPPED.

        Keep the record of one that is poison.
        """
        if skip is not None:
            self._skips.applied(skip)
        else:
            log.info("%s is a copy of one that is settled", facts.name)
        self._reporter.count(self._counter_key, skipped=1)
        self._records.forget_unless_poisoned(facts)
        return Outcome.SKIPPED
