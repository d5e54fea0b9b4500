"""The state of a guard, for health pages, the log and its heartbeat."""

from __future__ import annotations

from datetime import datetime, timedelta

from poisonguard.contract import GuardHeartbeat, GuardState
from poisonguard.dedupe.once import Once
from poisonguard.handling.circuit_breaker import BreakerState
from poisonguard.handling.guard_components import GuardComponents
from poisonguard.handling.slow_path import MessageFlow
from poisonguard.processes.sigterm_handler import SIGTERM
from poisonguard.server.threads_shared_by_guards import Connection
from poisonguard.version import VERSION


class GuardHealth:
    """Describe a started guard; `start_warnings` are those of its start."""

    def __init__(
        self,
        components: GuardComponents,
        *,
        flow: MessageFlow,
        connection: Connection,
        once: Once | None,
    ) -> None:
        self._components = components
        self._settings = components.settings
        self._breaker = components.breaker
        self._reporter = components.reporter
        self._attempts = components.attempts
        self._journal = components.journal
        self._flow = flow
        self._connection = connection
        self._once = once
        self.start_warnings: list[str] = []
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget that the guard did not hear SIGTERM: a child may."""
        self._unheard_checks = 0

    def check_signals(self) -> None:
        """Note once a second whether the guard would hear SIGTERM."""
        self._unheard_checks = self._unheard_checks + 1 if SIGTERM.warning else 0

    @property
    def state(self) -> GuardState:
        """Return the guard's state: stopping, paused, holding or running."""
        if self._components.leaving.is_set():
            return GuardState.STOPPING
        if self._breaker.state is not BreakerState.CLOSED:
            return GuardState.PAUSED
        waiting = self._flow.holding or self._components.released_messages
        if waiting and "failures" in self._reporter.trouble:
            return GuardState.HOLDING
        return GuardState.RUNNING

    @property
    def warnings(self) -> list[str]:
        """List problems of all parts of the guard, with their remedies."""
        problems = [*self._journal.problems, *self._attempts.problems]
        if self._unheard_checks > 1:  # the first check mostly repairs what it finds
            problems += filter(None, [SIGTERM.warning])
        if self._once is not None:
            problems += self._once.warnings
        return [*self.start_warnings, *self._connection.warnings, *problems]

    def heartbeat(self) -> GuardHeartbeat:
        """Build the guard's heartbeat, which Poisonweb shows."""
        return GuardHeartbeat(
            reporter=self._reporter.id,
            topic=self._settings.topic,
            consumer_group=self._settings.consumer_group,
            client_name=self._settings.client_name,
            host=self._components.host,
            version=VERSION,
            handler_version=self._settings.version,
            state=self.state,
            detail=self._detail,
            skips_age_s=self._components.skips.age,
            spooled=self._reporter.spooled,
            suspected=len(self._components.suspected_reports),
            journal=self._journal.folder is not None,
            failing_since=self._failing_since,
            at=self._reporter.now(),
        )

    def facts(self) -> dict[str, object]:
        """Return the guard's whole state, for a health page or a log."""
        components = self._components
        return {
            "topic": self._settings.topic,
            "consumer_group": self._settings.consumer_group,
            "client_name": self._settings.client_name,
            "host": self._components.host,
            "version": VERSION,
            "handler_version": self._settings.version,
            "state": self.state.value,
            "skips": len(components.skips),
            "skips_age": components.skips.age,
            "spooled": self._reporter.spooled,
            "holding": self._flow.holding,
            "retrying": self._flow.retrying,
            "kept": len(components.released_messages),
            "breaker": {
                "state": self._breaker.state.value,
                "failed_in_a_row": self._breaker.in_a_row,
                "reason": self._breaker.reason,
            },
            "suspects": len(self._attempts.suspects - self._attempts.given_up),
            "suspected": len(components.suspected_reports),
            "handled": components.counts.total,
            "in_flight": components.slots.running,
            "dedupe": self._once.facts() if self._once is not None else None,
            "journal": self._journal.facts(),
            "warnings": [*self.warnings, *self._released_warnings],
        }

    @property
    def _detail(self) -> str:
        """Return the breaker's reason and the guard's warnings in one line."""
        return "; ".join(filter(None, [self._breaker.reason, *self.warnings]))

    @property
    def _failing_since(self) -> datetime | None:
        """For the heartbeat, return when the failures that paused the guard began."""
        since = self._breaker.failing_since
        # A message fails a moment before its failure is counted.
        return None if since is None else since - timedelta(seconds=1)

    @property
    def _released_warnings(self) -> list[str]:
        """Warn of released messages that wait in the guard; [] without any."""
        number = len(self._components.released_messages)
        if not number:
            return []
        return [f"Released messages that wait to be tried again here: {number}."]
