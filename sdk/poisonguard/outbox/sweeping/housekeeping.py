"""What a sweeper does besides sending, now and then: figures, reports, pruning."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from poisonguard.contract import Cause
from poisonguard.errors import Away, Refused
from poisonguard.outbox.sweeping import (
    backlog_measurement,
    pruning,
    row_quarantine_and_report,
)
from poisonguard.outbox.sweeping.connection import OutboxConnection
from poisonguard.outbox.sweeping.error_log import ErrorLog, Stage
from poisonguard.outbox.sweeping.rejected_reports import RejectedReports
from poisonguard.outbox.sweeping.row_quarantine_and_report import (
    QuarantinedRow,
    QuarantineReporter,
)
from poisonguard.outbox.sweeping.settings import SweeperSettings
from poisonguard.outbox.sweeping.unmarkable_rows import UnmarkableRows

# The figures read all waiting rows: they may take so much of the time.
FIGURES_SHARE = 0.05


class Timer:
    """Say when something is due again; later where it has failed."""

    def __init__(self, every: float, settings: SweeperSettings) -> None:
        self._every = every
        # What has failed waits longer, so that it does not slow the sending.
        self._after_failure = max(settings.housekeeping_pause, every)
        self._at = 0.0

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._at

    def begin(self) -> float:
        """Begin a sweeper's housekeeping job; return the time.

        The job counts as failed until `end`.
        """
        now = time.monotonic()
        self._at = now + self._after_failure
        return now

    def end(self, seconds: float | None = None) -> None:
        """End a sweeper's housekeeping job, due again in these seconds or as usual."""
        self._at = time.monotonic() + (self._every if seconds is None else seconds)


class Housekeeping:
    """Do what is due; the errors of one part do not keep the others from it."""

    def __init__(
        self,
        settings: SweeperSettings,
        reporter: QuarantineReporter | None,
        unmarkable: UnmarkableRows,
        errors: ErrorLog,
        enter: Callable[[Stage], None],
    ) -> None:
        self._settings = settings
        self._reporter = reporter
        self._unmarkable = unmarkable
        self._errors = errors
        self._enter = enter
        self._figures = Timer(settings.figures_every, settings)
        self._reports = Timer(settings.reports_every, settings)
        self._pruning = Timer(settings.prune_every, settings)
        self._rejected = RejectedReports()
        self._rejected_left_out = RejectedReports()
        self.backlog = backlog_measurement.OutboxBacklog()

    def run(self, connection: OutboxConnection) -> None:
        if self._figures.is_due:
            self._enter(Stage.FIGURES)
            began = self._figures.begin()
            self.backlog = backlog_measurement.write(connection)
            seconds = (time.monotonic() - began) / FIGURES_SHARE
            self._figures.end(max(self._settings.figures_every, seconds))
        if self._reporter is not None and self._reports.is_due:
            self._enter(Stage.REPORT)
            self._reports.begin()
            self._report(connection, self._reporter)
        if self._pruning.is_due:
            self._enter(Stage.PRUNE)
            self._pruning.begin()
            has_more = pruning.prune(
                connection,
                rows_for=self._settings.rows_for,
                ids_for=self._settings.ids_for,
            )
            self._pruning.end(self._settings.poll if has_more else None)

    def report_soon(self) -> None:
        """Make the report of quarantined rows due now."""
        self._reports.end(0.0)

    def _report(
        self, connection: OutboxConnection, reporter: QuarantineReporter
    ) -> None:
        rows = self._rejected.unreported(connection)
        left_out = list(self._left_out_rows(connection))
        try:
            accepted = self._accepted(rows, reporter, self._rejected)
            if accepted:
                row_quarantine_and_report.mark_reported(connection, accepted)
            self._unmarkable.note_report(
                self._accepted(left_out, reporter, self._rejected_left_out)
            )
        except (Away, Refused) as error:
            self._errors.note(Stage.REPORT, error)
            return
        # Where all are rejected, there is no hurry: so may be all that come next.
        self._reports.end(0.0 if accepted else None)

    def _accepted(
        self,
        rows: Sequence[QuarantinedRow],
        reporter: QuarantineReporter,
        rejected: RejectedReports,
    ) -> list[int]:
        """Report quarantined rows to Poisonweb; return those that it accepted."""
        if not rows:
            return []
        accepted = list[int]()
        for row, answer in zip(rows, reporter.report(rows), strict=True):
            if answer.is_accepted:
                accepted.append(row.row_id)
                continue
            rejected.add(row.row_id)
            text = f"row {row.row_id}: {answer.detail}"
            self._errors.note_event(Stage.REPORT, "report rejected", text)
        return accepted

    def _left_out_rows(self, connection: OutboxConnection) -> Iterator[QuarantinedRow]:
        """Yield the unmarkable rows of an outbox, each with its reason."""
        reasons = self._unmarkable.unreported
        row_ids = self._rejected_left_out.others(reasons)
        listed = row_ids[: row_quarantine_and_report.REPORTED_AT_ONCE]
        for row in row_quarantine_and_report.rows_by_id(connection, listed):
            yield replace(row, cause=Cause.REJECTED, reason=reasons[row.row_id])
