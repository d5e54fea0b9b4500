"""Empty one outbox in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import psycopg
from django.db import DatabaseError, connections

from apps.core.errors import PoisonwebError
from apps.core.postgres_connections import borrow
from apps.outbox.database_error_texts import ErrorTexts
from apps.outbox.models import Outbox
from apps.outbox.producer_database_url import ProducerDatabase, search_path_to
from apps.outbox.services import sweeper_activity
from apps.outbox.services.sweeper_activity import NewErrors, SweeperNote
from apps.outbox.sweeper_and_row_states import SweeperState
from apps.outbox.sweeping.broker_backlog_throttle import TopicBacklogWatch
from apps.outbox.sweeping.broker_publishing import BrokerPublishing
from apps.outbox.sweeping.quarantine_capture import capture_quarantined
from poisonguard.errors import Away
from poisonguard.locks.postgres import PostgresLocks
from poisonguard.outbox.message import OutboxMessage
from poisonguard.outbox.outcome import SendOutcome
from poisonguard.outbox.sweeping.error_log import LoggedError, Stage
from poisonguard.outbox.sweeping.row_quarantine_and_report import (
    QuarantinedRow,
    ReportAnswer,
)
from poisonguard.outbox.sweeping.settings import SweeperSettings
from poisonguard.outbox.sweeping.sweeper import Sweeper, SweeperHealth

log = logging.getLogger(__name__)

NOTE_SECONDS = 1.0
# Sessions of a producer's database: one for the sweeper, and one for the lock.
PURPOSE = "sweeper"


class OutboxSweeper:
    """Sweep an outbox with the settings that it was made with, until it is stopped."""

    def __init__(self, outbox: Outbox, *, clock: Callable[[], datetime]) -> None:
        self.outbox = outbox
        self._clock = clock
        self._stop = threading.Event()
        self._watch = TopicBacklogWatch(outbox)
        self._publishing = BrokerPublishing(outbox.broker)
        self._sweeper = Sweeper(
            self._connect,
            PostgresLocks(self._conninfo),
            self._publish,
            reporter=self,
            slowed_topics=self._watch.slowed,
            settings=_settings_of(outbox),
        )
        self._notes = _NoteTaker(outbox, clock)
        self._thread = threading.Thread(
            target=self._run, name=f"sweeper of {outbox.name}", daemon=True
        )

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the threads that send an outbox's rows and watch its topics.

        The second one asks the broker for the backlogs of topics.
        """
        self._watch.start()
        self._thread.start()

    def stop(self) -> None:
        """Let an outbox's sweeper claim no more rows.

        `join` waits until the last window's rows are marked.
        """
        self._stop.set()

    def join(self, seconds: float) -> bool:
        """Wait so long for the sweeper thread's end; tell whether it has come."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def report(self, rows: Sequence[QuarantinedRow]) -> list[ReportAnswer]:
        """Capture an outbox's quarantined rows as messages to triage.

        Raises Away while our Postgres is away.
        """
        try:
            with borrow():
                return capture_quarantined(
                    outbox=self.outbox, rows=rows, now=self._clock()
                )
        except DatabaseError as away:
            raise Away(f"Quarantined rows cannot be captured: {away}") from away

    def _run(self) -> None:
        try:
            self._sweeper.run(_NotedStop(self._stop, self._note))
        finally:
            self._watch.stop()
            self._publishing.close()
            connections.close_all()  # those of this thread

    def _publish(self, messages: Sequence[OutboxMessage]) -> list[SendOutcome]:
        self._watch.note_topics({message.topic for message in messages})
        return self._publishing(messages)

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            **self._parameters(), autocommit=True, prepare_threshold=None
        )

    def _conninfo(self) -> str:
        return psycopg.conninfo.make_conninfo(**self._parameters())

    def _parameters(self) -> dict[str, Any]:
        """Return psycopg's parameters for the outbox's database, looked up now.

        Raises Away where its address is unusable.
        """
        try:
            database = ProducerDatabase.read(self.outbox.url)
            return database.parameters(
                purpose=PURPOSE, settings=search_path_to(self.outbox.schema)
            )
        except PoisonwebError as refusal:
            raise Away(str(refusal)) from refusal

    def _note(self) -> None:
        self._notes.take(
            self._sweeper.health(),
            slowed=self._watch.slowed(),
            watch_errors=self._watch.errors,
        )


class _NotedStop:
    """A stop signal that takes a note whenever the sweeper looks at it, or waits."""

    def __init__(self, stop: threading.Event, note: Callable[[], None]) -> None:
        self._stop = stop
        self._note = note

    def is_set(self) -> bool:
        self._note()
        return self._stop.is_set()

    def wait(self, timeout: float) -> bool:
        """Wait for the sweeper's stop; note its state each second of a long wait."""
        until = monotonic() + timeout
        while (seconds := until - monotonic()) > 0:
            if self._stop.wait(min(seconds, NOTE_SECONDS)):
                return True
            self._note()
        return self._stop.is_set()


class _NoteTaker:
    """Store once a second what a sweeper did since the last note."""

    def __init__(self, outbox: Outbox, clock: Callable[[], datetime]) -> None:
        self._outbox_id = outbox.pk
        self._texts = ErrorTexts(outbox.url)
        self._clock = clock
        self._noted_at = float("-inf")
        self._sent_count = self._duplicate_count = 0
        self._errors: dict[tuple[Stage, str], int] = {}

    def take(
        self,
        health: SweeperHealth,
        *,
        slowed: Mapping[str, str],
        watch_errors: Sequence[LoggedError],
    ) -> None:
        """Store the sweeper's health, unless the last note is younger than a second."""
        now = monotonic()
        seconds = now - self._noted_at
        if seconds < NOTE_SECONDS:
            return
        self._noted_at = now
        counted_at = None
        if health.fence is not None and health.backlog.measured_at is not None:
            counted_at = datetime.fromtimestamp(health.backlog.measured_at, UTC)
        state, detail = _state_of(health, slowed)
        errors = [*health.errors, *watch_errors]
        note = SweeperNote(
            state=state,
            detail=self._texts.clean(detail),
            counted_at=counted_at,
            waiting=health.backlog.rows,
            waiting_bytes=health.backlog.bytes,
            oldest_at=health.backlog.oldest_at,
            quarantined=health.backlog.quarantined,
            newly_sent=health.sent_count - self._sent_count,
            newly_duplicate=health.duplicate_count - self._duplicate_count,
            sent_per_second=(health.sent_count - self._sent_count) / seconds,
            slowed=dict(slowed),
        )
        try:
            with borrow():
                sweeper_activity.note(
                    outbox_id=self._outbox_id,
                    note=note,
                    errors=self._new_errors(errors),
                    now=self._clock(),
                )
        except DatabaseError as away:
            # The next note has all of it.
            log.warning("outbox %s: no note is stored: %s", self._outbox_id, away)
            return
        self._sent_count, self._duplicate_count = (
            health.sent_count,
            health.duplicate_count,
        )
        self._errors = {(each.stage, each.kind): each.count for each in errors}

    def _new_errors(self, errors: Sequence[LoggedError]) -> list[NewErrors]:
        return [
            NewErrors(
                step=each.stage.value,
                kind=each.kind,
                count=new,
                first_at=datetime.fromtimestamp(each.first_at, UTC),
                last_at=datetime.fromtimestamp(each.last_at, UTC),
                message=self._texts.clean(each.last_text),
                first_stack=self._texts.clean(each.first_stack),
            )
            for each in errors
            if (new := each.count - self._errors.get((each.stage, each.kind), 0))
        ]


def _state_of(
    health: SweeperHealth, slowed: Mapping[str, str]
) -> tuple[SweeperState, str]:
    """Return the `SweeperState` of a sweeper's health, and the reason for it."""
    latest = health.errors[0] if health.errors and health.failures_in_a_row else None
    if health.breaker_opened_at is not None:
        return SweeperState.BROKEN, health.breaker_reason
    if latest is not None and latest.stage is Stage.CONNECT:
        return SweeperState.UNREACHABLE, latest.last_text
    if health.fence is None:
        return SweeperState.WAITING, "another sweeper empties it, or has just ended"
    if slowed:
        topic, why = next(iter(slowed.items()))
        return SweeperState.SLOWED, f"{topic}: {why}"
    return SweeperState.SWEEPING, ""


def _settings_of(outbox: Outbox) -> SweeperSettings:
    return SweeperSettings(
        schema=outbox.schema or None,
        window_rows=outbox.window,
        rows_for=timedelta(days=outbox.sent_rows_days),
        ids_for=timedelta(days=outbox.sent_ids_days),
    )
