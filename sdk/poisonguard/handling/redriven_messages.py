"""Redriven messages: handled once here, and confirmed to Poisonweb."""

from __future__ import annotations

from poisonguard.contract import Confirmation
from poisonguard.handling.earlier_attempt_records import tolerating_a_full_disk
from poisonguard.handling.guard_components import GuardComponents
from poisonguard.handling.lazy_message_facts import MessageFacts


class RedrivenMessages:
    """Remember which redrives are settled; messages that are none are ignored."""

    def __init__(self, components: GuardComponents) -> None:
        self._attempts = components.attempts
        self._reporter = components.reporter
        self._settings = components.settings
        self._clock = components.clock

    def is_copy(self, facts: MessageFacts) -> bool:
        """Tell whether a copy of a redriven message was settled before."""
        redrive = facts.redrive_id
        if redrive is None:
            return False
        return self._attempts.is_redrive_settled(facts.message_id or "", redrive)

    def confirm(self, facts: MessageFacts) -> None:
        """Queue the confirmation that a redriven message was handled; settle it."""
        if not (facts.redrive_id and facts.redrive):
            return
        confirmation = Confirmation(
            redrive=facts.redrive,
            topic=self._settings.topic,
            consumer_group=self._settings.consumer_group,
            client_name=self._settings.client_name,
            at=self._clock(),
        )
        with tolerating_a_full_disk():
            self._reporter.confirm(confirmation)
        self.settle(facts)

    def settle(self, facts: MessageFacts) -> None:
        """Remember locally that a message's redrive is settled.

        Ignore messages without a redrive.
        """
        redrive = facts.redrive_id
        if redrive is not None:
            with tolerating_a_full_disk():
                self._attempts.mark_redrive_settled(
                    facts.message_id or "", redrive, now=self._clock()
                )
