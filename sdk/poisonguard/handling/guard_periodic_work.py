"""What a guard does about once a second, beside its messages."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress

from poisonguard.errors import Away, Full, Refused
from poisonguard.handling.guard_components import GuardComponents
from poisonguard.handling.guard_health import GuardHealth
from poisonguard.handling.released_messages_to_retry import (
    HandlerNeeded,
    raise_handler_needed,
)
from poisonguard.handling.slow_path import MessageFlow
from poisonguard.handling.step_types_and_thread_runner import play

log = logging.getLogger(__name__)

REFRESH_EVERY = 10.0  # seconds between reads of what other processes recorded
RESEND_TIMEOUT = 5.0


class Upkeep:
    """Hand over counts and the heartbeat; report and retry what has waited."""

    def __init__(
        self, components: GuardComponents, *, flow: MessageFlow, health: GuardHealth
    ) -> None:
        self._settings = components.settings
        self._reporter = components.reporter
        self._counter_key = components.counter_key
        self._counts = components.counts
        self._skips = components.skips
        self._reader = components.reader
        self._attempts = components.attempts
        self._suspected_reports = components.suspected_reports
        self._released_messages = components.released_messages
        self._leaving = components.leaving
        self._flow = flow
        self._health = health
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Take new locks for the guard's periodic work in a forked child."""
        self._refreshed_at = time.monotonic()
        self._counting = threading.Lock()
        self._resending = threading.Lock()
        self._retrying = threading.Lock()

    def run(self) -> None:
        """Send the guard's counts and heartbeat; start threads for longer due work.

        They send suspected reports and retry released messages. It never waits.
        """
        self.report_counts()
        self.send_heartbeat()
        self._clear_doubts()
        is_resend_due = self._suspected_reports.first(handled=self._counts.total)
        if is_resend_due and not self._resending.locked():
            threading.Thread(
                target=self.resend_suspected, name="poisonguard-withheld", daemon=True
            ).start()
        if self._released_messages.is_due() and not self._retrying.locked():
            threading.Thread(
                target=self._retry_released, name="poisonguard-kept", daemon=True
            ).start()
        if time.monotonic() - self._refreshed_at >= REFRESH_EVERY:
            self._refreshed_at = time.monotonic()
            self._attempts.refresh()

    def report_counts(self) -> None:
        """Hand the guard's counts since the last call to the reporter."""
        with self._counting:
            handled, durations = self._counts.take_new()
            if handled or durations:
                self._reporter.count(
                    self._counter_key, handled=handled, durations=durations
                )

    def send_heartbeat(self) -> None:
        """Hand the present state of the guard to the reporter."""
        self._reporter.set_heartbeat(self._health.heartbeat())

    def _clear_doubts(self) -> None:
        """Report the messages that we handled, although a new skip matches them.

        Another consumer failed on them.
        """
        doubts = self._skips.skips_to_check()
        if not doubts:
            return
        recent = set(self._counts.recent)
        for doubt in doubts:
            skip = doubt.skip
            number = self._reader.number_again(
                bookmark=skip.value, message_id=doubt.message_id, seq=doubt.seq
            )
            if number in recent and skip.id is not None:
                log.warning("%r was handled here, and failed elsewhere", skip.value)
                self._reporter.count_applied(
                    skip=skip.id,
                    consumer_group=self._settings.consumer_group,
                    client_name=self._settings.client_name,
                    times=0,
                    handled=True,
                )
                self._skips.settle_doubt(skip.id)

    def resend_suspected(self) -> None:
        """Report suspected poisons again, as certain: this process is not sick."""
        suspected_reports = self._suspected_reports
        with self._resending:
            while report := suspected_reports.first(handled=self._counts.total):
                try:
                    self._reporter.poison(
                        report,
                        when_away=self._settings.when_away,
                        keep_alive=None,
                        stop=self._leaving,
                        hold_for=RESEND_TIMEOUT,
                    )
                except (Away, Full) as reason:
                    log.info("%r stays suspected for now: %s", report.bookmark, reason)
                    return
                except Refused as reason:
                    log.error(  # noqa: TRY400 - the server says why
                        "%r stays suspected: %s", report.bookmark, reason
                    )
                suspected_reports.remove_oldest()

    def _retry_released(self) -> None:
        """Retry released messages that may not need their handler."""
        with self._retrying:
            while not self._leaving.is_set():
                entry = self._released_messages.take(needs_handler=False)
                if entry is None:
                    return
                steps = self._flow.retry_steps(entry)
                with suppress(HandlerNeeded):
                    play(steps, raise_handler_needed, entry.message, self._leaving)
