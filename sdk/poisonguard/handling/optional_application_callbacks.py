"""The functions that the application gave its guard."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from poisonguard.handling.guard_components import GuardComponents
from poisonguard.handling.lazy_message_facts import MessageFacts
from poisonguard.handling.step_types_and_thread_runner import BlockingCall, Step
from poisonguard.outcome import Outcome

log = logging.getLogger(__name__)


class Application:
    """Call the application where it gave a function, and log its exceptions.

    `redelivers` tells whether it returns messages to a broker that delays them.
    """

    def __init__(self, components: GuardComponents) -> None:
        self._reader = components.reader
        self._keep_alive = components.keep_alive
        self._redeliver = components.redeliver
        self._settle = components.settle
        self._on_first_failure = components.policy.on_first_failure
        self.redelivers = components.redeliver is not None
        self.hears_first_failures = self._on_first_failure is not None

    def redelivers_known(self, facts: MessageFacts) -> bool:
        """Tell whether the broker can delay a message which we recognise later.

        Without that, its failures would be counted from zero each time.
        """
        has_identity = self._reader.has_identity(facts.message)
        return self.redelivers and has_identity

    def keep_alive(self, facts: MessageFacts) -> None:
        """Have the application keep a message invisible at the broker; may raise."""
        facts.kept_alive_at = time.monotonic()
        if self._keep_alive is not None:
            self._keep_alive(facts.message)

    def redeliver(
        self, facts: MessageFacts, after: float
    ) -> Generator[Step, Any, None]:
        """Have the application return a message to a broker that delays it."""
        if self._redeliver is not None:
            call = partial(self._redeliver, facts.message, after)
            yield from self._call(facts, call)

    def settle(
        self, facts: MessageFacts, outcome: Outcome
    ) -> Generator[Step, Any, None]:
        """Tell the application the outcome of a message that the guard had kept."""
        if self._settle is not None:
            call = partial(self._settle, facts.message, outcome)
            yield from self._call(facts, call)

    def announce_failure(
        self, facts: MessageFacts, error: Exception
    ) -> Generator[Step, Any, None]:
        """Tell the application that a message has failed for the first time."""
        if self._on_first_failure is not None:
            call = partial(self._on_first_failure, facts.message, error)
            yield from self._call(facts, call)

    def _call(
        self, facts: MessageFacts, call: Callable[[], object]
    ) -> Generator[Step, Any, None]:
        """Call a function of the application; log what it raises."""
        try:
            yield BlockingCall(call)
        except Exception:
            log.exception("a call back for %s failed", facts.name)
