"""The loop of a sweeper: claim a window, send it, mark it; no error ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import uuid4

from poisonguard.errors import Away, Fenced, GuardError, Misconfigured
from poisonguard.locks import LockServer
from poisonguard.outbox.outcome import Publish, SendOutcome
from poisonguard.outbox.sweeping import repeated_message_ids
from poisonguard.outbox.sweeping.backlog_measurement import OutboxBacklog
from poisonguard.outbox.sweeping.claimed_row_decoding import ClaimedRow, RefusedRow
from poisonguard.outbox.sweeping.claimed_window import (
    SendingRecord,
    SendingWindow,
    WindowFinish,
)
from poisonguard.outbox.sweeping.connection import Connect, OutboxConnection
from poisonguard.outbox.sweeping.error_log import (
    ErrorLog,
    LoggedError,
    Stage,
    SweeperBreaker,
)
from poisonguard.outbox.sweeping.failing_statement_row_bisection import bisect
from poisonguard.outbox.sweeping.housekeeping import Housekeeping
from poisonguard.outbox.sweeping.psycopg_import import psycopg
from poisonguard.outbox.sweeping.row_claims import ClaimOrder, Claims, is_of_row
from poisonguard.outbox.sweeping.row_quarantine_and_report import QuarantineReporter
from poisonguard.outbox.sweeping.settings import SweeperSettings
from poisonguard.outbox.sweeping.sweeper_lock import Ownership

READ_FENCE = "SELECT fence FROM {sweeper}"
TAKEN_OVER = "Another sweeper has taken over this outbox, or its fence was changed."
# A window that was claimed longer ago is not sent, for its claim may end meanwhile.
SENDING_SHARE = 0.5
# Where all rows of a window cannot be claimed, so many behind it are looked at.
WINDOWS_BEHIND = 20
# Rows of one key go one by one, for so long: the rest goes with the next window.
ROUNDS_SECONDS = 2.0


class Unanswered(GuardError):
    """The broker took none of the messages of a call: see whether it runs."""


class StopSignal(Protocol):
    """Say when to stop: threading.Event, or a SignalSafeEvent."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class SweeperHealth:
    """The state of a sweeper; `breaker_opened_at` is seconds since 1970, or None.

    `fence` is None while another sweeper works. `failures_in_a_row` counts errors since
    the last success. `backlog` is what the last look at the table showed. `left_out`
    are rows that cannot be claimed or marked. Counts are those of this process.
    """

    fence: int | None
    breaker_opened_at: float | None
    breaker_reason: str
    errors: tuple[LoggedError, ...]
    sent_count: int
    quarantined_count: int
    duplicate_count: int
    left_out: tuple[int, ...]
    window_rows: int
    failures_in_a_row: int
    backlog: OutboxBacklog


@dataclass(frozen=True, slots=True)
class Session:
    """One connection, and what works on it."""

    connection: OutboxConnection
    claims: Claims
    finish: WindowFinish


class Sweeper:
    """Send what waits in an outbox, as long as no other sweeper does.

    `locks` is of the producer's database, and `publish` a function as
    `poisonguard.outbox.outcome` describes it. Without a reporter quarantined rows are
    only marked in their table. `slowed_topics` returns the topics whose rows have to
    wait just now.
    """

    def __init__(
        self,
        connect: Connect,
        locks: LockServer,
        publish: Publish,
        *,
        reporter: QuarantineReporter | None = None,
        slowed_topics: Callable[[], Collection[str]] = tuple,
        settings: SweeperSettings | None = None,
    ) -> None:
        self.errors = ErrorLog()
        self._connect = connect
        self._publish = publish
        self._slowed_topics = slowed_topics
        self._settings = settings = settings or SweeperSettings()
        self._ownership = Ownership(locks)
        self._record = SendingRecord(settings, self.errors)
        self._breaker = SweeperBreaker(
            limit=settings.breaker_errors,
            pause=settings.pause,
            longest_pause=settings.longest_pause,
        )
        self._housekeeping = Housekeeping(
            settings, reporter, self._record.unmarkable, self.errors, self._enter
        )
        self._session: Session | None = None
        self._window: SendingWindow | None = None
        self._stage = Stage.CONNECT

    def run(self, stop: StopSignal) -> None:
        """Sweep the outbox until `stop`; finish the window, then let others work."""
        try:
            while not stop.is_set():
                stop.wait(self.work_once())
            if self._window is not None:
                self.work_once(is_stopping=True)
        finally:
            self.close()

    def work_once(self, *, is_stopping: bool = False) -> float:
        """Send one window of outbox rows; return the seconds to wait before the next.

        This is the one place where every error is caught: it is counted, logged, shown
        in `health`, and followed by a pause.
        """
        try:
            seconds = self._work(is_stopping=is_stopping)
        except Exception as error:  # noqa: BLE001 - the one place: see above
            self.errors.note(self._stage, error)
            return self._breaker.note_error(self._stage, error)
        self._breaker.note_success()
        return seconds

    def health(self) -> SweeperHealth:
        """Return the sweeper's state and errors; any thread may ask."""
        return SweeperHealth(
            fence=self._ownership.fence,
            breaker_opened_at=self._breaker.opened_at,
            breaker_reason=self._breaker.reason,
            errors=tuple(self.errors.errors),
            sent_count=self._record.sent_count,
            quarantined_count=self._record.refused_count,
            duplicate_count=self._record.duplicate_count,
            left_out=tuple(self._record.unmarkable.left_out(time.monotonic())),
            window_rows=self._record.size.rows,
            failures_in_a_row=self._breaker.errors_in_a_row,
            backlog=self._housekeeping.backlog,
        )

    def close(self) -> None:
        """Release the sweeper's lock and its database connection."""
        self._ownership.close()
        self._close_session()

    def _work(self, *, is_stopping: bool) -> float:
        self._enter(Stage.CONNECT)
        session = self._open_session()
        self._finish_window(session)
        if is_stopping:
            return 0.0
        self._enter(Stage.LOCK)
        fence = self._ownership.acquire(session.connection, seconds=self._settings.poll)
        if fence is None:
            return 0.0
        try:
            has_sent = self._send_window(session, fence)
        except (Away, Unanswered):
            # The broker is away, and the database is not: say how much waits.
            self._housekeeping.run(session.connection)
            self._enter(Stage.PUBLISH)
            raise
        self._housekeeping.run(session.connection)
        return 0.0 if has_sent else self._settings.poll

    def _open_session(self) -> Session:
        """Return the sweeper's database session; a new one after a connection error."""
        session = self._session
        if session is not None and session.connection.is_usable:
            return session
        self._close_session()
        connection = OutboxConnection(self._connect, self._settings)
        claims = Claims(connection, self._settings)
        finish = WindowFinish(
            connection, claims, self._record, self.errors, self._enter
        )
        self._session = Session(connection, claims, finish)
        return self._session

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.connection.close()

    def _finish_window(self, session: Session) -> None:
        """Finish the last window of outbox rows: give back, quarantine and mark."""
        if self._window is None:
            return
        has_refused = bool(self._window.refused)
        session.finish.run(self._window)
        self._window = None
        if has_refused:
            self._housekeeping.report_soon()

    def _send_window(self, session: Session, fence: int) -> bool:
        """Claim, send, mark a window of outbox rows; return whether there was one."""
        window = self._window = SendingWindow()
        self._enter(Stage.CLAIM)
        rows = self._claim(session, window, fence)
        if not rows:
            window.is_claiming = False
            self._window = None
            self._check_fence(session, fence)
            return False
        self._enter(Stage.IDS)
        others = repeated_message_ids.read_same_ids(session.connection, rows)
        if others.fence != fence:
            self._ownership.release()
            raise Fenced(TAKEN_OVER)
        verdicts = repeated_message_ids.judge(rows, others.by_identity)
        window.add(verdicts)
        window.is_claiming = False
        if verdicts.to_send:
            self._send(session, window, verdicts.to_send)
        self._finish_window(session)
        return True

    def _claim(
        self, session: Session, window: SendingWindow, fence: int
    ) -> list[ClaimedRow | RefusedRow]:
        record, now = self._record, time.monotonic()
        order = ClaimOrder(
            token=window.token,
            fence=fence,
            rows=record.size.rows,
            left_out=record.unmarkable.left_out(now),
            passed_by=record.lone_rows.row_ids,
            slowed_topics=self._slowed_topics(),
        )
        lone = record.lone_rows.next_due(now)
        if lone is not None:
            rows = session.claims.claim_by_id([lone], order)
            if rows:
                return rows
            record.lone_rows.forget(lone)
        try:
            return session.claims.claim_next(order)
        except psycopg.Error as error:
            if not is_of_row(error):
                raise
            self.errors.note(self._stage, error)
        return self._claim_by_halves(session, order)

    def _claim_by_halves(
        self, session: Session, order: ClaimOrder
    ) -> list[ClaimedRow | RefusedRow]:
        """Claim a window's rows by halves, leaving out those whose claim fails."""
        rows = list[ClaimedRow | RefusedRow]()

        def claim(part: Sequence[int]) -> None:
            rows.extend(session.claims.claim_by_id(part, order))

        row_ids = session.claims.list_next(order)
        result = bisect(
            row_ids,
            claim,
            lambda: _try_claims_behind(session.claims, order, row_ids[-1]),
        )
        for row_id, error in result.failed:
            self._record.leave_out(
                row_id, Stage.CLAIM, f"it cannot be claimed: {error}"
            )
        return sorted(rows, key=lambda row: row.row_id)

    def _check_fence(self, session: Session, fence: int) -> None:
        """Raise Fenced where the outbox has another sweeper's fence."""
        if session.connection.execute(READ_FENCE) != [(fence,)]:
            self._ownership.release()
            raise Fenced(TAKEN_OVER)

    def _send(
        self, session: Session, window: SendingWindow, rows: Sequence[ClaimedRow]
    ) -> None:
        """Publish a window's rows, and divide them by their outcomes.

        A row of a topic and key goes once the broker has answered to the one before.
        """
        self._enter(Stage.PUBLISH)
        window.to_send = list(rows)
        if not self._may_send(window):
            # This process was frozen: others may send these rows, or have sent them.
            self._finish_window(session)
            self._enter(Stage.PUBLISH)
            raise Fenced(
                f"A window was claimed {window.age:.0f} s ago, and was not sent."
            )
        is_answered, detail = self._send_round(session, window)
        # Figures, reports and SIGTERM wait for the end of a window.
        while is_answered and window.to_send and window.age <= ROUNDS_SECONDS:
            if not self._may_send(window):
                break
            is_answered, detail = self._send_round(session, window)
        has_progress = bool(window.sent_rows or window.refused)
        self._finish_window(session)
        if not (is_answered and has_progress):
            self._enter(Stage.PUBLISH)
            raise Unanswered(f"The broker took none of what it got last: {detail}")

    def _send_round(self, session: Session, window: SendingWindow) -> tuple[bool, str]:
        """Publish the next rows of a sweeper's window; return if any was answered.

        Return also how. What an error leaves unsent is given back with the rest of the
        window.
        """
        rows = window.begin_round(self._record.call_size.rows)
        begin = time.monotonic()
        try:
            outcomes = self._publish([row.message for row in rows])
        except Away:
            window.in_flight = []
            window.give_back_unsent(rows)
            self._finish_window(session)
            self._enter(Stage.PUBLISH)
            raise
        _check_outcomes(outcomes, len(rows))
        self._record.call_size.note_call(len(rows), time.monotonic() - begin)
        return self._record.add_outcomes(window, outcomes), outcomes[0].detail

    def _may_send(self, window: SendingWindow) -> bool:
        """Tell whether the sweeper may send a window: lock ours, claim young enough."""
        most = SENDING_SHARE * self._settings.claim_seconds
        return self._ownership.fence is not None and window.age <= most

    def _enter(self, stage: Stage) -> None:
        self._stage = stage


def _try_claims_behind(claims: Claims, order: ClaimOrder, row_id: int) -> bool:
    """Tell whether, as a trial, any outbox row behind this one can be claimed.

    It is given back: earlier ones of its topic and key may have to go before it.
    """
    probe = replace(order, token=uuid4(), behind=row_id)
    for _ in range(WINDOWS_BEHIND):
        row_ids = claims.list_next(probe)
        if not row_ids:
            return False
        for chosen in {row_ids[0], row_ids[-1]}:
            if _can_claim(claims, probe, chosen):
                claims.give_back_all(probe.token)
                return True
        probe = replace(probe, behind=row_ids[-1])
    return False


def _can_claim(claims: Claims, order: ClaimOrder, row_id: int) -> bool:
    try:
        rows = claims.claim_by_id([row_id], order)
    except psycopg.Error as error:
        if not is_of_row(error):
            raise
        return False
    return any(row.version for row in rows)


def _check_outcomes(outcomes: Sequence[SendOutcome], count: int) -> None:
    if len(outcomes) != count or not all(
        isinstance(outcome, SendOutcome) for outcome in outcomes
    ):
        raise Misconfigured(
            f"publish got {count} messages: return a SendOutcome for each, in order."
        )
