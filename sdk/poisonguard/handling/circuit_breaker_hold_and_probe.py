"""The pause of a guard while its breaker is open."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from typing import Any

from poisonguard.handling.circuit_breaker import PROBE_POLL_SECONDS, BreakerState
from poisonguard.handling.guard_components import GuardComponents
from poisonguard.handling.lazy_message_facts import MessageFacts
from poisonguard.handling.step_types_and_thread_runner import Step
from poisonguard.handling.waiting_with_undecided_message import Released, Waits

log = logging.getLogger(__name__)

_REASON = "breaker"  # why the gate is closed


class GuardPause:
    """Hold messages while the breaker is open, and let one probe it."""

    def __init__(self, components: GuardComponents, waits: Waits) -> None:
        self._breaker = components.breaker
        self._gate = components.gate
        self._hold_for = components.settings.hold_for
        self._waits = waits

    @property
    def is_over(self) -> bool:
        """Tell whether the guard's pause is over: the breaker is closed."""
        return self._breaker.state is BreakerState.CLOSED

    def count_failure(self) -> bool:
        """Count a message that is given up; return whether the guard is paused now."""
        if not self._breaker.count_failure():
            return False
        self._gate.close(_REASON)
        log.error("the guard is paused: %s", self._breaker.reason)
        return True

    def released_error(self) -> Released:
        """Return the exception that releases a message as the guard is paused.

        The message cannot wait on.
        """
        return Released(f"the guard is paused: {self._breaker.reason}")

    def passes_as_probe(self, facts: MessageFacts) -> Generator[Step, Any, bool]:
        """Wait while the breaker is open; return whether this message is its probe."""
        until = time.monotonic() + self._hold_for
        while (turn := self._breaker.admit()).wait:
            yield from self._wait(facts, turn.wait, until)
        if not turn.is_probe:
            self._gate.open(_REASON)
        return turn.is_probe

    def hold(self, facts: MessageFacts) -> Generator[Step, Any, None]:
        """Wait while the guard's breaker is open, with a message not to probe it."""
        until = time.monotonic() + self._hold_for
        while not self.is_over:
            yield from self._wait(facts, PROBE_POLL_SECONDS, until)

    def _wait(
        self, facts: MessageFacts, seconds: float, until: float
    ) -> Generator[Step, Any, None]:
        """Wait some seconds with a paused guard's message; release after `until`."""
        remaining = until - time.monotonic()
        if remaining <= 0:
            raise self.released_error()
        yield from self._waits.pause(facts, min(seconds, remaining))

    def probe(
        self, attempt: Generator[Step, Any, Exception | None]
    ) -> Generator[Step, Any, None]:
        """Run the message that probes the breaker; raise Released unless handled."""
        handled: bool | None = None
        try:
            error = yield from attempt
            handled = error is None
        finally:
            self._breaker.probed(handled=handled)
        if error is not None:
            raise Released(
                f"the guard stays paused, its probe failed too: {error!r:.1000}"
            )
        log.warning("the guard goes on: its probe was handled")
        self._gate.open(_REASON)
