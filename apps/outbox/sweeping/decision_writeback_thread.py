"""The thread that writes decisions about messages back to outbox rows.

It waits for producers' databases, and sweeping does not wait for it: until a row is
settled it stays quarantined or dropped, so that no sweeper sends it.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import chain, zip_longest
from time import monotonic
from typing import Any

import psycopg
from django.db import DatabaseError, connections

from apps.core.postgres_connections import borrow
from apps.outbox import decision_writeback, outbox_row_decisions
from apps.outbox.database_error_texts import ErrorTexts
from apps.outbox.models import Outbox
from apps.outbox.outbox_row_decisions import Quarantine
from apps.outbox.services import quarantined_rows_and_messages, sweeper_activity
from apps.outbox.services.quarantined_rows_and_messages import DecidedRow
from apps.outbox.services.sweeper_activity import NewErrors
from apps.outbox.sweeper_and_row_states import QuarantineState
from poisonguard.outbox.sweeping.row_claims import is_of_row

log = logging.getLogger(__name__)

STEP = "settle rows"
LOOK_SECONDS = 5.0
# Each look reads all quarantined rows: it may take so much of the time.
LOOK_SHARE = 0.05
# Rows of one transaction in a producer's database.
AT_ONCE = 100
# Keys of rows that one look lists, as each reads all quarantined rows.
LISTED_AT_ONCE = 10_000
# Answers of a part: bodies are read one by one, but come as two digits for each byte.
MOST_BYTES = 512 * 2**20
# So long rows are tried one by one; the rest of a part is left for later.
APART_SECONDS = 5.0
# So long an outbox or a row is left alone after an error.
AFTER_ERROR = timedelta(seconds=60)


class DecisionWriteback:
    """Write triage decisions back to outbox rows.

    Its errors are shown with those of the sweepers.
    """

    def __init__(self, *, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._left_alone: dict[tuple[str, int], datetime] = {}
        # Rows of a part of an outbox: fewer after an error, which may be their size.
        self._part_rows: dict[int, int] = {}
        self._looked_for = 0.0
        self._thread = threading.Thread(
            target=self._run, name="decision writeback", daemon=True
        )
        self._stop = threading.Event()

    def start(self) -> None:
        """Start the thread that writes decisions back to outbox rows."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread begin no other transaction on outbox rows.

        `join` waits for the present one.
        """
        self._stop.set()

    def join(self, seconds: float) -> bool:
        """Wait so long for the decision writeback's thread; tell whether it ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def settle_all(self) -> None:
        """Set quarantined rows of all outboxes as people and triage decided.

        It ends when nothing more can be done now.
        """
        with borrow():
            quarantined_rows_and_messages.prune_settled(now=self._clock())
            quarantined_rows_and_messages.note_ends_of_floods(now=self._clock())
        while outboxes := self._unsettled_outboxes():
            parts = [self._parts(outbox) for outbox in outboxes]
            # In turn: an outbox with many rows does not delay the others.
            in_turn = chain.from_iterable(zip_longest(*parts))
            for outbox, keys in filter(None, in_turn):
                if self._stop.is_set():
                    return
                if outbox.pk not in self._keys_not_written("outbox"):
                    self._settle(outbox, keys)

    def _run(self) -> None:
        pause = LOOK_SECONDS
        try:
            while not self._stop.wait(pause):
                self._looked_for = 0.0
                try:
                    self.settle_all()
                except DatabaseError as away:
                    log.warning("no rows of outboxes are settled: %s", away)
                except Exception:
                    # The thread goes on: the next look may find what this one did not.
                    log.exception("no rows of outboxes are settled")
                pause = max(LOOK_SECONDS, self._looked_for / LOOK_SHARE)
        finally:
            connections.close_all()  # those of this thread

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Lend a session of our Postgres to the decision writeback's search for rows.

        The block's time is added to the time spent with looking.
        """
        began = monotonic()
        try:
            with borrow():
                yield
        finally:
            self._looked_for += monotonic() - began

    def _unsettled_outboxes(self) -> list[Outbox]:
        with self._looking():
            rows = quarantined_rows_and_messages.rows_awaiting_writeback().exclude(
                pk__in=self._keys_not_written("row")
            )
            outboxes = Outbox.objects.filter(pk__in=rows.values("outbox"))
            listed = outboxes.exclude(pk__in=self._keys_not_written("outbox"))
            return list(listed.order_by("pk").select_related("topic"))

    def _parts(self, outbox: Outbox) -> list[tuple[Outbox, Sequence[int]]]:
        """List keys of an outbox's rows to write decisions back to, in parts.

        They are the first of these rows. Each part is for one transaction, and comes
        with the outbox.
        """
        with self._looking():
            keys = quarantined_rows_and_messages.first_unsettled(
                outbox, passed_by=self._keys_not_written("row"), most=LISTED_AT_ONCE
            )
        size = self._part_rows.get(outbox.pk, AT_ONCE)
        starts = range(0, len(keys), size)
        return [(outbox, keys[start : start + size]) for start in starts]

    def _settle(self, outbox: Outbox, keys: Sequence[int]) -> None:
        """Set quarantined rows of an outbox as was decided, and store their states.

        An error leaves the outbox, or a row, for later.
        """
        with borrow():
            rows = quarantined_rows_and_messages.unsettled_rows(keys)
        try:
            states = self._settle_rows(outbox, rows)
        except Exception as error:  # noqa: BLE001 - counted, and shown with its stack
            self._leave("outbox", outbox.pk)
            self._part_rows[outbox.pk] = max(1, len(keys) // 2)
            self._note_error(outbox, error)
            return
        size = self._part_rows.get(outbox.pk, AT_ONCE)
        self._part_rows[outbox.pk] = min(AT_ONCE, 2 * size)
        with borrow():
            quarantined_rows_and_messages.store_all(
                outbox=outbox, states=states, now=self._clock()
            )

    def _settle_rows(
        self, outbox: Outbox, rows: Sequence[DecidedRow]
    ) -> list[tuple[DecidedRow, QuarantineState]]:
        """Update rows in a producer's outbox as decided, in one transaction.

        Returns their states. Rows that are left for later have no state here.
        """
        states = list[tuple[DecidedRow, QuarantineState]]()
        if not rows:
            return states
        by_target = dict[QuarantineState, list[DecidedRow]]()
        for decided in rows:
            by_target.setdefault(decided.target, []).append(decided)
        with outbox_row_decisions.session(outbox, most_bytes=MOST_BYTES) as connection:
            connection.execute(decision_writeback.LOCK_LIMIT)
            for together in by_target.values():
                try:
                    states += self._settle_together(outbox, connection, together)
                except psycopg.Error:
                    if connection.broken or connection.closed:
                        raise
                    states += self._settle_apart(outbox, connection, together)
        return states

    def _settle_apart(
        self,
        outbox: Outbox,
        connection: psycopg.Connection[Any],
        rows: Sequence[DecidedRow],
    ) -> list[tuple[DecidedRow, QuarantineState]]:
        """Write decisions to a producer's outbox rows one after the other.

        So it is where together they failed. Returns their states. Rows that fail, or
        for which there is no time, are left for later.
        """
        states = list[tuple[DecidedRow, QuarantineState]]()
        until = monotonic() + APART_SECONDS
        for decided in rows:
            if monotonic() > until:
                self._leave("row", decided.row.pk)
                continue
            try:
                states += self._settle_together(outbox, connection, [decided])
            except psycopg.Error as error:
                if not (is_of_row(error) or is_locked(error)):
                    raise
                self._leave("row", decided.row.pk)
                self._note_error(outbox, error)
        return states

    def _settle_together(
        self,
        outbox: Outbox,
        connection: psycopg.Connection[Any],
        rows: Sequence[DecidedRow],
    ) -> list[tuple[DecidedRow, QuarantineState]]:
        """Write one decision to a producer's outbox rows at once; all fail with one.

        Returns the states that the rows have then, without those to try later.
        """
        quarantines = {
            row.row_id: Quarantine(row.quarantined_at, row.message_id)
            for row in (decided.row for decided in rows)
        }
        with connection.transaction():
            became = decision_writeback.settle(
                outbox, connection, target=rows[0].target, quarantines=quarantines
            )
        states = list[tuple[DecidedRow, QuarantineState]]()
        for decided in rows:
            state = became[decided.row.row_id]
            if state is None:
                self._leave("row", decided.row.pk)
            else:
                states.append((decided, state))
        return states

    def _keys_not_written(self, what: str) -> list[int]:
        """Return keys of outboxes, or of rows, that the writeback leaves alone now.

        It is the writeback of decisions. They failed or had to wait, within the last
        minute.
        """
        now = self._clock()
        for key in [key for key, until in self._left_alone.items() if until <= now]:
            del self._left_alone[key]
        return [pk for kind, pk in self._left_alone if kind == what]

    def _leave(self, what: str, pk: int) -> None:
        self._left_alone[what, pk] = self._clock() + AFTER_ERROR

    def _note_error(self, outbox: Outbox, error: Exception) -> None:
        now, texts = self._clock(), ErrorTexts(outbox.url)
        log.warning("rows of %s are not settled: %s", outbox, error)
        new = NewErrors(
            step=STEP,
            kind=type(error).__name__,
            count=1,
            first_at=now,
            last_at=now,
            message=texts.clean(str(error)),
            first_stack=texts.clean("".join(traceback.format_exception(error))),
        )
        with borrow():
            sweeper_activity.add_errors(outbox_id=outbox.pk, errors=[new])


def is_locked(error: psycopg.Error) -> bool:
    """Tell whether a statement failed because another session locks the row."""
    return isinstance(error, psycopg.errors.LockNotAvailable)
