"""Reports that Poisonweb rejects: they are not repeated, and others come through."""

from __future__ import annotations

import pytest

from poisonguard.outbox.sweeping import rejected_reports, row_quarantine_and_report
from poisonguard.outbox.sweeping.connection import OutboxConnection, connecting_to
from poisonguard.outbox.sweeping.rejected_reports import RejectedReports
from poisonguard.outbox.sweeping.row_quarantine_and_report import QuarantinedRow
from poisonguard.outbox.sweeping.settings import SweeperSettings
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.sdk.outbox_sweeping.sweeper_with_recording_publisher import (
    RecordingPublisher,
    RecordingReporter,
    sweeping,
    work_until,
)

QUARANTINE = (
    "UPDATE poisonguard_outbox SET quarantined_at = now(),"
    " quarantine_cause = 'rejected', quarantine_reason = 'r'"
)


def test_rows_behind_many_rejected_ones_are_reported_and_these_are_not_repeated(
    outbox: OutboxTables,
) -> None:
    outbox.put_many(1_500)
    accepted = outbox.put("accepted")
    outbox.execute(QUARANTINE)

    def accepts(row: QuarantinedRow) -> bool:
        return row.row_id == accepted

    reporter = RecordingReporter()
    reporter.accepts = accepts

    with sweeping(outbox.dsn, RecordingPublisher(), reporter=reporter) as sweeper:
        work_until(sweeper, lambda: outbox.column("reported_at", accepted))
        for _ in range(30):
            sweeper.work_once()
        counts = {error.kind: error.count for error in sweeper.errors.errors}

    assert counts == {"report rejected": 1_500}


def test_where_all_are_rejected_the_next_report_waits_for_its_time(
    outbox: OutboxTables,
) -> None:
    outbox.put_many(300)
    outbox.execute(QUARANTINE)
    reporter = RecordingReporter()
    reporter.accepts = lambda row: False
    with sweeping(
        outbox.dsn, RecordingPublisher(), reporter=reporter, reports_every=600.0
    ) as sweeper:
        for _ in range(5):
            sweeper.work_once()
        (error,) = sweeper.errors.errors

    assert error.count == 100


def test_rejected_rows_are_reported_again_after_an_hour(
    outbox: OutboxTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejected_reports, "MOST_ROWS", 3)
    outbox.put_many(10)
    outbox.execute(QUARANTINE)
    now = 7.0
    rejected = RejectedReports(timer=lambda: now)
    connection = OutboxConnection(connecting_to(outbox.dsn), SweeperSettings())

    def row_ids() -> list[int]:
        return [row.row_id for row in rejected.unreported(connection)]

    for row_id in (101, 102, 109):
        rejected.add(row_id)
    assert row_ids() == [*range(103, 109), 110]
    rejected.add(104)
    # All up to the last one, and those behind it.
    assert row_ids() == [*range(105, 109), 110]
    assert rejected.others(range(110, 100, -1)) == [*range(105, 109), 110]
    now += rejected_reports.REJECTED_SECONDS
    assert row_ids() == [*range(101, 111)]
    connection.close()


def test_many_large_rows_behind_rejected_ones_are_read_a_part_at_a_time(
    outbox: OutboxTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejected_reports, "MOST_ROWS", 0)
    monkeypatch.setattr(row_quarantine_and_report, "REPORT_BYTES", 100)
    outbox.put_many(1)
    outbox.execute(
        "INSERT INTO poisonguard_outbox (producer, message_id, topic, body, headers)"
        " SELECT 'shop', 'large ' || n, 'orders', repeat('x', 20)::bytea,"
        " ARRAY['name', repeat('x', 16)]::bytea[]"
        " FROM generate_series(1, 9) AS n"
    )
    outbox.execute(QUARANTINE)
    rejected = RejectedReports()
    rejected.add(101)
    connection = OutboxConnection(connecting_to(outbox.dsn), SweeperSettings())

    assert [r.row_id for r in rejected.unreported(connection)] == [102, 103]
    connection.close()
