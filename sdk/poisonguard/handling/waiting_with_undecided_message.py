"""Waiting with a message that was delivered and is not decided yet."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

from poisonguard.handling.guard_components import GuardComponents
from poisonguard.handling.lazy_message_facts import MessageFacts
from poisonguard.handling.optional_application_callbacks import Application
from poisonguard.handling.step_types_and_thread_runner import Step, Wait

EARLY_HOLD_SECONDS = 1.0  # seconds to hold a message that came before its retry is due
POLL_SECONDS = 0.01  # seconds between checks for a free slot
REFUSAL_PAUSE = 5.0  # seconds: a broker may return it at once, and we would spin


class Released(Exception):
    """Return the message to the broker, to be delivered again after some seconds."""

    def __init__(self, reason: str, *, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


class Waits:
    """Keep messages alive while they wait; release them when the process stops."""

    def __init__(self, components: GuardComponents, application: Application) -> None:
        self._reader = components.reader
        self._leaving = components.leaving
        self._keep_alive_every = components.settings.keep_alive_every
        self._hold_for = components.settings.hold_for
        self._application = application
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget, in a forked child, the parent's messages that wait for a retry."""
        self.retrying: set[MessageFacts] = set()  # waiting for their retry in place

    def pause(self, facts: MessageFacts, seconds: float) -> Generator[Step, Any, None]:
        """Wait some seconds with a message; raise Released when the process stops."""
        until = time.monotonic() + seconds
        while (remaining := until - time.monotonic()) > 0:
            if self._leaving.is_set():
                raise Released("this process is to stop")
            every = self._keep_alive_every
            yield Wait(min(remaining, every))
            if time.monotonic() - facts.kept_alive_at >= every:
                self._application.keep_alive(facts)

    def until_due(
        self, facts: MessageFacts, seconds: float
    ) -> Generator[Step, Any, None]:
        """Wait with a message that was delivered before its retry is due.

        Raise Released after a moment if the broker can delay it for longer.
        """
        # Hold it for a moment: with a broker that ignores delays we would spin.
        is_delayed = self._application.redelivers_known(facts)
        later = seconds - EARLY_HOLD_SECONDS if is_delayed else 0.0
        yield from self.for_retry(
            facts, min(seconds, EARLY_HOLD_SECONDS) if later > 0 else seconds
        )
        if later > 0:
            raise Released(f"it is due in {later:.1f} s", after=later)

    def for_retry(
        self, facts: MessageFacts, seconds: float
    ) -> Generator[Step, Any, None]:
        """Wait for the retry of a message that stays with this guard."""
        self.retrying.add(facts)
        try:
            yield from self.pause(facts, seconds)
        finally:
            self.retrying.discard(facts)

    def after_refusal(self, facts: MessageFacts) -> Generator[Step, Any, None]:
        """Wait before releasing a message that the broker would return at once."""
        if not self._application.redelivers and not self._reader.replays:
            yield from self.pause(facts, min(REFUSAL_PAUSE, self._hold_for))
