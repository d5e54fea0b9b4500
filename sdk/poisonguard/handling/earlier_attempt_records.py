"""What earlier attempts have left on record about messages."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from poisonguard.contract import Cause
from poisonguard.errors import Full
from poisonguard.handling.guard_components import GuardComponents
from poisonguard.handling.lazy_message_facts import MessageFacts
from poisonguard.journal.failed_attempts_record import Record
from poisonguard.journal.failed_attempts_sqlite_schema import SKIP_COMES, UNSETTLED
from poisonguard.policy import RetryDecision

log = logging.getLogger(__name__)


@contextmanager
def tolerating_a_full_disk() -> Iterator[None]:
    """Log a full disk in the block instead of raising Full.

    The message is done, and must not run again.
    """
    try:
        yield
    except Full as reason:
        log.error("%s", reason)  # noqa: TRY400 - it says what to do


class MessageRecords:
    """The records of one consumer's messages, read and written by the retry policy."""

    def __init__(self, components: GuardComponents) -> None:
        self._attempts = components.attempts
        self._policy = components.policy
        self._reader = components.reader
        self._settings = components.settings
        self._clock = components.clock
        self._server_clock = components.server_clock

    # Before an attempt

    def record(self, facts: MessageFacts) -> Record | None:
        """Read the record of a message's attempts; None without one."""
        if facts.number not in self._attempts.suspects:
            return None
        return self._attempts.of(facts.identity, facts.number, now=self._clock())

    def is_expired(self, facts: MessageFacts, record: Record | None) -> bool:
        """Tell whether a guard's message has waited longer than the policy allows."""
        since = self._waiting_since(facts, record)
        return since is not None and self._policy.is_expired(
            since, at=min(self._times())
        )

    def final_cause(self, record: Record) -> Cause | None:
        """Return the cause if a message's record already makes the message poison."""
        if record.crashes >= self._settings.crash_limit:
            return record.crash or Cause.CRASH
        # Crashes alone never exhaust the attempts: the message may not be the cause.
        if record.failures and record.attempts >= self._policy.max_attempts:
            return Cause.EXHAUSTED
        return None

    def was_poisoned(self, facts: MessageFacts) -> bool:
        """Tell whether a process gave a message up and died before settling it."""
        # Not `given_up`: another process may have given it up since the last refresh,
        # and removed its record.
        if facts.number not in self._attempts.suspects or facts.redrive_id:
            return False
        return self._attempts.is_poisoned(self._poison_key(facts), now=self._clock())

    def seconds_until_due(self, record: Record) -> float:
        """Return the seconds until a message's retry is due, 0 if it is."""
        return record.wait(self._clock()).total_seconds()

    # After an attempt

    def charge(
        self, facts: MessageFacts, record: Record | None, error: Exception
    ) -> tuple[RetryDecision, Record]:
        """Count a message's failure durably; return what comes next, and the record."""
        now = self._clock()
        attempts = 1 + (record.attempts if record else 0)
        before = record.due_at - record.failed_at if record and record.due_at else None
        delay = self._policy.delay(
            attempts, before=before.total_seconds() if before else None
        )
        due_in = timedelta(seconds=delay)
        since = self._waiting_since(facts, record) or max(self._times())
        decision = self._policy.judge(
            error,
            attempts=attempts,
            due_at=min(self._times()) + due_in,
            first_enqueued_at=since,
        )
        return decision, self._attempts.count_failure(
            facts.identity,
            facts.number,
            now=now,
            due_at=now + due_in if decision is RetryDecision.RETRY else None,
            first_enqueued_at=since,
        )

    def mark_first_failure(self, facts: MessageFacts) -> bool:
        """Mark a first failure as announced to the application; False if it was."""
        return self._attempts.mark_first_failure(facts.identity, now=self._clock())

    def charge_crash(self, facts: MessageFacts, reason: str) -> None:
        """Record that the message ends this process."""
        with tolerating_a_full_disk():
            self._attempts.count_crash(facts.number, now=self._clock(), reason=reason)

    # Once it is decided

    def forget(self, facts: MessageFacts) -> None:
        """Delete the record of a message's attempts, if there is one."""
        if facts.number in self._attempts.suspects:
            with tolerating_a_full_disk():
                self._attempts.forget(facts.identity, facts.number)

    def forget_unless_poisoned(self, facts: MessageFacts) -> None:
        """Delete the record of a message, unless it marks a known poison."""
        if facts.number not in self._attempts.given_up:
            self.forget(facts)

    def mark_poison(
        self, facts: MessageFacts, *, is_shared: bool, crashes: int
    ) -> None:
        """Remember a poison until it is settled or its skip has arrived.

        Delete its record instead if it is redriven, if its broker does not return it,
        or if the server's skip suffices.
        """
        reader = self._reader
        returns = reader.replays or reader.bookmarks_are_places
        is_skipped = reader.replays and is_shared
        # Without a record it could kill other processes here until its skip arrives.
        if facts.redrive_id or not returns or (is_skipped and not crashes):
            self.forget(facts)
            return
        with tolerating_a_full_disk():
            self._attempts.mark_poison(
                facts.identity,
                facts.number,
                bookmark=self._poison_key(facts),
                now=self._clock(),
                lasts=SKIP_COMES if is_skipped else UNSETTLED,
            )

    def _poison_key(self, facts: MessageFacts) -> str:
        """Return a message's key among this consumer's poisons.

        On replayed topics, poisons are per handler version.
        """
        version = self._settings.version
        if version is None or not self._reader.replays:
            return facts.bookmark
        return f"{version}\0{facts.bookmark}"

    # Times

    def _waiting_since(
        self, facts: MessageFacts, record: Record | None
    ) -> datetime | None:
        """Return when a message was enqueued, or failed first; None if not known."""
        if record is not None and record.failures:
            return record.first_enqueued_at or record.first_failed_at
        return facts.enqueued_at

    def _times(self) -> tuple[datetime, datetime]:
        """Return the present time by our clock and by the server's.

        Either may be set wrongly: a message has expired when both say so.
        """
        return self._clock(), self._server_clock()
