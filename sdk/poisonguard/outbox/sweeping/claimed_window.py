"""One window: rows that were claimed together, until each has its mark.

What is left to do for it is here, so that a window whose statement failed is finished
before another one is claimed: so no row is sent again because a mark failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from uuid import UUID, uuid4

from poisonguard.contract import Cause
from poisonguard.outbox.outcome import SendKind, SendOutcome
from poisonguard.outbox.sweeping import (
    repeated_message_ids,
    row_quarantine_and_report,
    sent_marks,
)
from poisonguard.outbox.sweeping.claimed_row_decoding import (
    ClaimedRow,
    OrderKey,
    RefusedRow,
)
from poisonguard.outbox.sweeping.connection import OutboxConnection
from poisonguard.outbox.sweeping.error_log import ErrorLog, Stage
from poisonguard.outbox.sweeping.failing_statement_row_bisection import (
    Bisection,
    bisect,
)
from poisonguard.outbox.sweeping.repeated_message_ids import DuplicateRow, Verdicts
from poisonguard.outbox.sweeping.row_claims import Claims, ReturnedRow
from poisonguard.outbox.sweeping.settings import SweeperSettings
from poisonguard.outbox.sweeping.unmarkable_rows import CHANGED_AGAIN, UnmarkableRows
from poisonguard.outbox.sweeping.window_size_and_retry_delay import (
    CallSize,
    LoneRows,
    WindowSize,
    row_pause,
)

SILENT = "the broker gave no answer {} times while the row was alone: {}"


def seconds_since_boot() -> float:
    """Return a time that goes on while the machine sleeps, where the system has one."""
    clock: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class NumberedRow(Protocol):
    """A row of an outbox."""

    @property
    def row_id(self) -> int: ...


Numbered = TypeVar("Numbered", bound=NumberedRow)


@dataclass(slots=True)
class SendingWindow:
    """The rows of one claim, by what is left to do for them.

    `is_claiming`: the answer to the claim has not come. `to_send` were not handed to
    the broker's client yet, and `in_flight` were, and it has not returned.
    """

    token: UUID = field(default_factory=uuid4)
    claimed_at: float = field(default_factory=seconds_since_boot)
    is_claiming: bool = True
    to_send: list[ClaimedRow] = field(default_factory=list)
    in_flight: list[ClaimedRow] = field(default_factory=list)
    sent_rows: list[ClaimedRow] = field(default_factory=list)
    refused: list[RefusedRow] = field(default_factory=list)
    duplicates: list[DuplicateRow] = field(default_factory=list)
    returned: list[ReturnedRow] = field(default_factory=list)

    @property
    def age(self) -> float:
        """Return the seconds since the window of outbox rows was claimed."""
        return seconds_since_boot() - self.claimed_at

    def add(self, verdicts: Verdicts) -> None:
        """Add to a window the outbox rows to quarantine, and the duplicates to mark."""
        self.refused += verdicts.refused
        self.duplicates += verdicts.duplicates

    def begin_round(self, most: int) -> list[ClaimedRow]:
        """Return the window's rows to send now: none behind another of its key.

        Rows without a key may go together.
        """
        rows, behind, keys = list[ClaimedRow](), list[ClaimedRow](), set[OrderKey]()
        for row in self.to_send:
            must_wait = row.order_key in keys or len(rows) == most
            (behind if must_wait else rows).append(row)
            if row.message.key:
                keys.add(row.order_key)
        self.in_flight, self.to_send = rows, behind
        return rows

    def end_round(self) -> None:
        """Give back the window's rows behind a row that was given back."""
        keys = {each.row.order_key for each in self.returned}
        self.give_back_unsent([row for row in self.to_send if row.order_key in keys])
        self.to_send = [row for row in self.to_send if row.order_key not in keys]

    def give_back_unsent(self, rows: Sequence[ClaimedRow]) -> None:
        """Give back all unsent outbox rows of a window, through no fault of theirs."""
        self.returned += [ReturnedRow(row=row, is_counted=False) for row in rows]


class SendingRecord:
    """What a process remembers of sending, from one window to the next."""

    def __init__(self, settings: SweeperSettings, errors: ErrorLog) -> None:
        self.size = WindowSize(settings.window_rows)
        self.call_size = CallSize(settings)
        self.lone_rows = LoneRows(settings)
        self.unmarkable = UnmarkableRows()
        self.sent_count = self.refused_count = self.duplicate_count = 0
        self._settings = settings
        self._errors = errors

    def add_outcomes(
        self, window: SendingWindow, outcomes: Sequence[SendOutcome]
    ) -> bool:
        """Sort the rows in flight by publishing outcome; False if none was answered."""
        rows, window.in_flight = window.in_flight, []
        if all(outcome.kind is SendKind.UNKNOWN for outcome in outcomes):
            self.note_silence(window, rows, outcomes[0].detail)
            return False
        row_ids = [row.row_id for row in rows]
        self.size.note_answers(row_ids)
        self.lone_rows.note_answers(row_ids)
        for row, outcome in zip(rows, outcomes, strict=True):
            self._add_outcome(window, row, outcome)
        window.end_round()
        return True

    def note_silence(
        self, window: SendingWindow, rows: Sequence[ClaimedRow], detail: str
    ) -> None:
        """Give back rows without an answer of the broker; shrink their windows.

        A row that was alone often enough is quarantined.
        """
        self.size.note_silence([row.row_id for row in rows])
        if len(rows) > 1:
            window.returned += [ReturnedRow(row=row) for row in rows]
            return
        (row,) = rows
        seconds, is_last = self.lone_rows.note_silence(row.row_id, now=time.monotonic())
        if is_last:
            reason = SILENT.format(self._settings.tries_alone, detail)
            window.refused.append(_refusal(row, reason))
        else:
            window.returned.append(ReturnedRow(row=row, seconds=seconds))

    def leave_out(self, row_id: int, stage: Stage, reason: str) -> None:
        """Leave an outbox row out that cannot be claimed or marked, and report it."""
        self.lone_rows.forget(row_id)
        self.unmarkable.add(row_id, reason, now=time.monotonic())
        self._errors.note_event(stage, "row left out", f"row {row_id}: {reason}")

    def note_marks(
        self, stage: Stage, marked: Collection[int], missed: Collection[int]
    ) -> None:
        """Note which rows a sweeper's marks reached, and which they found changed.

        A row that marks find changed again and again is left out.
        """
        for row_id in self.unmarkable.note_marks(marked, missed):
            self.leave_out(row_id, stage, CHANGED_AGAIN)

    def _add_outcome(
        self, window: SendingWindow, row: ClaimedRow, outcome: SendOutcome
    ) -> None:
        match outcome.kind:
            case SendKind.SENT:
                window.sent_rows.append(row)
            case SendKind.REFUSED:
                reason = f"the broker refuses it: {outcome.detail}"
                window.refused.append(_refusal(row, reason))
            case SendKind.UNKNOWN | SendKind.UNSENT:
                text = f"row {row.row_id}: {outcome.detail}"
                self._errors.note_event(Stage.PUBLISH, outcome.kind.value, text)
                seconds = row_pause(row.attempts, self._settings)
                window.returned.append(ReturnedRow(row=row, seconds=seconds))


class WindowFinish:
    """Do what is left to do for a window; may be called again where it failed."""

    def __init__(
        self,
        connection: OutboxConnection,
        claims: Claims,
        record: SendingRecord,
        errors: ErrorLog,
        enter: Callable[[Stage], None],
    ) -> None:
        self._connection = connection
        self._claims = claims
        self._record = record
        self._errors = errors
        self._enter = enter

    def run(self, window: SendingWindow) -> None:
        if window.is_claiming:
            self._enter(Stage.CLAIM)
            self._claims.give_back_all(window.token)
            window.is_claiming = False
        if window.in_flight:
            # The client of the broker raised what it should not: see the error log.
            rows, window.in_flight = window.in_flight, []
            self._record.note_silence(window, rows, "its client failed")
        rows, window.to_send = window.to_send, []
        window.give_back_unsent(rows)
        self._mark_sent(window)
        self._quarantine(window)
        self._mark_duplicates(window)
        if window.returned:
            self._enter(Stage.GIVE_BACK)
            result = bisect(
                window.returned,
                lambda part: self._claims.give_back(window.token, part),
            )
            self._leave_out(result, Stage.GIVE_BACK)
            window.returned = []

    def _mark_sent(self, window: SendingWindow) -> None:
        """Mark the window's sent rows; note the ids of those changed meanwhile."""
        if not window.sent_rows:
            return
        self._enter(Stage.MARK)
        marked = set[int]()

        def run(part: Sequence[ClaimedRow]) -> None:
            marked.update(sent_marks.mark_sent(self._connection, window.token, part))

        result = bisect(window.sent_rows, run)
        # Not twice where the next statement fails.
        window.sent_rows = [r for r in window.sent_rows if r.row_id not in marked]
        self._record.sent_count += len(marked)
        if window.sent_rows:
            self._note_unmarked(window.sent_rows)
        missed = _missed(result, marked)
        window.sent_rows = []
        self._record.note_marks(Stage.MARK, marked, [row.row_id for row in missed])
        self._leave_out(result, Stage.MARK)

    def _note_unmarked(self, rows: Sequence[ClaimedRow]) -> None:
        row_ids = sent_marks.note_sent(self._connection, rows)
        if row_ids:
            names = ", ".join(map(str, row_ids[: repeated_message_ids.MOST_NAMED]))
            self._errors.note_event(
                Stage.MARK,
                "rows changed while they were sent",
                f"{len(row_ids)} rows could not be marked: {names}",
            )

    def _quarantine(self, window: SendingWindow) -> None:
        if not window.refused:
            return
        self._enter(Stage.QUARANTINE)
        for row in window.refused:
            if row.is_unchangeable:
                self._record.leave_out(row.row_id, Stage.CLAIM, row.reason)
        rows = [row for row in window.refused if not row.is_unchangeable]
        window.refused = rows
        marked = set[int]()

        def run(part: Sequence[RefusedRow]) -> None:
            marked.update(row_quarantine_and_report.mark(self._connection, part))

        result = bisect(rows, run)
        self._record.refused_count += len(result.passed)
        window.refused = []
        for row in result.passed:
            text = f"row {row.row_id}: {row.reason}"
            self._errors.note_event(Stage.QUARANTINE, "row quarantined", text)
        # What others have claimed or marked meanwhile has no version of ours.
        missed = [row.row_id for row in _missed(result, marked) if row.version]
        self._record.note_marks(Stage.QUARANTINE, marked, missed)
        self._leave_out(result, Stage.QUARANTINE)

    def _mark_duplicates(self, window: SendingWindow) -> None:
        if not window.duplicates:
            return
        self._enter(Stage.IDS)
        marked = set[int]()

        def run(part: Sequence[DuplicateRow]) -> None:
            marked.update(repeated_message_ids.mark(self._connection, part))

        result = bisect(window.duplicates, run)
        # Not twice where the next statement fails.
        window.duplicates = []
        self._record.duplicate_count += len(marked)
        missed = _missed(result, marked)
        if missed:
            sent_marks.refresh_sent(self._connection, [each.row for each in missed])
        self._record.note_marks(Stage.IDS, marked, [each.row_id for each in missed])
        self._leave_out(result, Stage.IDS)

    def _leave_out(self, result: Bisection[Numbered], stage: Stage) -> None:
        for row, error in result.failed:
            self._record.leave_out(row.row_id, stage, f"it fails to {stage}: {error}")


def _missed(result: Bisection[Numbered], marked: Collection[int]) -> list[Numbered]:
    """Return the outbox rows that no mark reached, as they had changed meanwhile.

    Rows whose statement failed are not among them.
    """
    return [row for row in result.passed if row.row_id not in marked]


def _refusal(row: ClaimedRow, reason: str) -> RefusedRow:
    return RefusedRow(
        row_id=row.row_id, cause=Cause.REJECTED, reason=reason, version=row.version
    )
