"""What a window costs: statements, not time, which is noisy."""

from __future__ import annotations

from itertools import count
from typing import Any

from poisonguard.locks.postgres import PostgresLocks
from poisonguard.outbox.message import OutboxMessage
from poisonguard.outbox.outcome import SendKind, SendOutcome
from poisonguard.outbox.sweeping.settings import SweeperSettings
from poisonguard.outbox.sweeping.sweeper import Sweeper
from tests.sdk.outbox_sweeping.faulty_ports import Faults, faulty_connect
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.sdk.outbox_sweeping.sweeper_with_recording_publisher import (
    SENT,
    RecordingPublisher,
    RecordingReporter,
    work_until,
)
from tests.waiting import wait_until

REFUSED = SendOutcome(kind=SendKind.REFUSED)
# On a slow machine they would be due more often. What is quarantined is reported soon.
ONCE: dict[str, Any] = {
    "figures_every": 3_600.0,
    "reports_every": 3_600.0,
    "prune_every": 3_600.0,
}


def statements(outbox: OutboxTables) -> int:
    """Send all that waits; count the statements until all is reported."""
    calls, reporter = Faults(None, is_late=False), RecordingReporter()
    publisher = RecordingPublisher()

    def answer(message: OutboxMessage) -> SendOutcome:
        return REFUSED if message.body == b"bad" else SENT

    publisher.answer = answer
    sweeper = Sweeper(
        faulty_connect(outbox.dsn, calls),
        PostgresLocks(outbox.dsn),
        publisher,
        reporter=reporter,
        settings=SweeperSettings(poll=0.001, **ONCE),
    )
    try:
        work_until(
            sweeper,
            lambda: (
                not outbox.waiting
                and not outbox.count(
                    "quarantined_at IS NOT NULL AND reported_at IS NULL"
                )
            ),
        )
    finally:
        sweeper.close()
    return len(calls.calls)


def test_four_bad_rows_cost_at_most_three_clean_batches(outbox: OutboxTables) -> None:
    outbox.drop_unique_index()
    outbox.allow_nulls()
    outbox.put_many(1_002)
    clean = statements(outbox)
    outbox.make()
    outbox.drop_unique_index()
    outbox.allow_nulls()
    outbox.put_many(998)
    for body in (b"one", b"other"):
        outbox.put("twice", body)
    outbox.put("no body", None)
    outbox.put("refused", b"bad")

    dirty = statements(outbox)

    assert len(outbox.reasons()) == 4
    assert dirty <= 3 * clean


def test_a_clean_window_is_three_statements(outbox: OutboxTables) -> None:
    outbox.put_many(500)
    few = statements(outbox)
    outbox.put_many(5_000, first=501)

    assert statements(outbox) == few + 9 * 3


def test_rows_are_claimed_and_marked_on_their_own_pages(outbox: OutboxTables) -> None:
    # While autovacuum analyses a table, Postgres cannot reuse the room of old versions.
    numbers = count(1, 2_000)
    wait_until(lambda: size_of_swept_rows(outbox, first=next(numbers)) < 2.7)


def size_of_swept_rows(outbox: OutboxTables, *, first: int) -> float:
    """Sweep 2,000 rows in an empty table; return its size, 1 for the rows alone."""
    outbox.execute("TRUNCATE poisonguard_outbox")
    outbox.put_many(2_000, first=first)
    statements(outbox)
    ((size, live),) = outbox.execute(
        "SELECT pg_relation_size('poisonguard_outbox'), sum(pg_column_size(entry))"
        " FROM poisonguard_outbox AS entry"
    )
    return float(size) / float(live)


def test_a_row_that_cannot_be_claimed_costs_a_bisection(outbox: OutboxTables) -> None:
    outbox.put_many(500)
    clean = statements(outbox)
    outbox.put_many(500, first=501)
    outbox.execute(
        "CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.message_id = 'm-777' THEN RAISE 'no'; END IF; RETURN NEW; END $$"
    )
    outbox.execute(
        "CREATE TRIGGER meddle BEFORE UPDATE ON poisonguard_outbox"
        " FOR EACH ROW EXECUTE FUNCTION meddle()"
    )
    calls, publisher = Faults(None, is_late=False), RecordingPublisher()
    sweeper = Sweeper(
        faulty_connect(outbox.dsn, calls), PostgresLocks(outbox.dsn), publisher
    )
    try:
        sweeper.work_once()
    finally:
        sweeper.close()

    assert len(publisher.sent_messages) == 499
    assert len(calls.calls) <= clean + 25
