"""Count what waits in a paused outbox, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import psycopg
from django.db import DatabaseError, connections

from apps.core.postgres_connections import borrow
from apps.outbox.database_error_texts import ErrorTexts
from apps.outbox.models import Outbox
from apps.outbox.producer_database_url import ProducerDatabase, search_path_to
from apps.outbox.services import sweeper_activity
from apps.outbox.services.sweeper_activity import SweeperNote
from apps.outbox.sweeper_and_row_states import SweeperState
from poisonguard.outbox.sweeping import backlog_measurement
from poisonguard.outbox.sweeping.backlog_measurement import OutboxBacklog
from poisonguard.outbox.sweeping.connection import OutboxConnection
from poisonguard.outbox.sweeping.settings import SweeperSettings

log = logging.getLogger(__name__)

PURPOSE = "counts of a paused outbox"
NOTE_SECONDS = 1.0
COUNT_SECONDS = 5.0
AFTER_ERROR_SECONDS = 30.0
# A count reads all waiting rows: it may take so much of the time.
COUNT_SHARE = 0.05


class PausedOutboxCounter:
    """Note that an outbox is paused, and what waits in its table.

    Producers go on while it is paused: the figures have to grow, and alerts to come.
    """

    def __init__(self, outbox: Outbox, *, clock: Callable[[], datetime]) -> None:
        self.outbox = outbox
        self._clock = clock
        self._texts = ErrorTexts(outbox.url)
        self._stop = threading.Event()
        self._connection: OutboxConnection | None = None
        self._backlog = OutboxBacklog()
        self._detail = ""
        self._thread = threading.Thread(
            target=self._run, name=f"counter of {outbox.name}", daemon=True
        )

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread that counts a paused outbox's rows."""
        self._thread.start()

    def stop(self) -> None:
        """Let a paused outbox's counter begin no other count."""
        self._stop.set()

    def join(self, seconds: float) -> bool:
        """Wait so long for the counter thread's end; tell whether it has come."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        due = 0.0
        try:
            while not self._stop.is_set():
                self._note()
                if monotonic() >= due:
                    due = monotonic() + self._count()
                self._stop.wait(NOTE_SECONDS)
        finally:
            self._close()
            connections.close_all()  # those of this thread

    def _count(self) -> float:
        """Count the rows that wait; return the seconds until the next count.

        An error is shown on pages, and the last counts stay, with their time.
        """
        began = monotonic()
        try:
            self._backlog = backlog_measurement.read(self._open())
        except Exception as error:  # noqa: BLE001 - shown, and tried again
            self._close()
            log.warning("the rows of %s cannot be counted: %s", self.outbox, error)
            text = " ".join(self._texts.clean(str(error)).split())
            self._detail = f"what waits cannot be counted: {text}"
            return AFTER_ERROR_SECONDS
        self._detail = ""
        return max(COUNT_SECONDS, (monotonic() - began) / COUNT_SHARE)

    def _note(self) -> None:
        backlog = self._backlog
        counted_at = None
        if backlog.measured_at is not None:
            counted_at = datetime.fromtimestamp(backlog.measured_at, UTC)
        note = SweeperNote(
            state=SweeperState.PAUSED,
            detail=self._detail,
            counted_at=counted_at,
            waiting=backlog.rows,
            waiting_bytes=backlog.bytes,
            oldest_at=backlog.oldest_at,
            quarantined=backlog.quarantined,
        )
        try:
            with borrow():
                sweeper_activity.note(
                    outbox_id=self.outbox.pk, note=note, errors=(), now=self._clock()
                )
        except DatabaseError as away:
            log.warning("outbox %s: no note is stored: %s", self.outbox.pk, away)

    def _open(self) -> OutboxConnection:
        """Return the counter's connection; a new one after an error of the last."""
        if self._connection is not None and self._connection.is_usable:
            return self._connection
        self._close()
        settings = SweeperSettings(schema=self.outbox.schema or None)
        self._connection = OutboxConnection(self._connect, settings)
        return self._connection

    def _connect(self) -> psycopg.Connection[Any]:
        database = ProducerDatabase.read(self.outbox.url)
        parameters = database.parameters(
            purpose=PURPOSE, settings=search_path_to(self.outbox.schema)
        )
        return psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
