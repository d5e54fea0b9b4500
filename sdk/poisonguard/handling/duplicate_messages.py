"""Copies of a message that runs or has run elsewhere, as a window sees them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from poisonguard.dedupe.once import Busy, Copy, Unmarked
from poisonguard.handling.already_decided_messages import KnownMessages
from poisonguard.handling.guard_components import GuardComponents
from poisonguard.handling.lazy_message_facts import MessageFacts
from poisonguard.handling.optional_application_callbacks import Application
from poisonguard.handling.step_types_and_thread_runner import Steps
from poisonguard.handling.waiting_with_undecided_message import (
    EARLY_HOLD_SECONDS,
    POLL_SECONDS,
    REFUSAL_PAUSE,
    Released,
    Waits,
)

log = logging.getLogger(__name__)

COPY_POLL_LIMIT = 0.2  # seconds between checks whether a copy is done, at the most


class MessageCopies:
    """Decide messages whose window did not let the handler run."""

    def __init__(
        self,
        components: GuardComponents,
        *,
        application: Application,
        known_messages: KnownMessages,
        waits: Waits,
    ) -> None:
        hold_for = components.settings.hold_for
        self._longest_wait = (
            min(hold_for, EARLY_HOLD_SECONDS) if application.redelivers else hold_for
        )
        self._known_messages = known_messages
        self._waits = waits

    def once(
        self, facts: MessageFacts, steps: Steps, again: Callable[[MessageFacts], Steps]
    ) -> Steps:
        """Wait while a copy of a message runs; skip the message if one was handled.

        Go through `steps` at first, and through those of `again` after each wait.
        """
        waiting_since, pause = None, POLL_SECONDS
        while True:
            try:
                return (yield from steps)
            except Copy:
                return self._known_messages.skip_copy(facts)
            except Unmarked as reason:
                log.error(  # noqa: TRY400 - it says what to do
                    "whether %s is a copy cannot be told: %s", facts.name, reason
                )
                yield from self._waits.after_refusal(facts)
                raise Released(str(reason), after=REFUSAL_PAUSE) from None
            except Busy:
                now = time.monotonic()
                waiting_since = waiting_since or now
                if now - waiting_since >= self._longest_wait:
                    because = "a copy of it has been running all the time"
                    raise Released(because, after=EARLY_HOLD_SECONDS) from None
            yield from self._waits.pause(facts, pause)
            pause = min(2 * pause, COPY_POLL_LIMIT)
            steps = again(facts)
