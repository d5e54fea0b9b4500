"""What a sweeper measures and deletes: figures of topics, rows that others marked."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from poisonguard.outbox.sweeping import backlog_measurement, pruning
from poisonguard.outbox.sweeping.connection import OutboxConnection, connecting_to
from poisonguard.outbox.sweeping.settings import SweeperSettings
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables

FIGURES = (
    "SELECT topic, waiting_rows, measured_at > now() - interval '30 seconds'"
    " FROM poisonguard_outbox_figures ORDER BY topic"
)
AGE = (
    "UPDATE poisonguard_outbox_figures"
    " SET measured_at = measured_at - interval '61 seconds'"
)


@pytest.fixture
def connection(outbox: OutboxTables) -> Iterator[OutboxConnection]:
    connection = OutboxConnection(connecting_to(outbox.dsn), SweeperSettings())
    yield connection
    connection.close()


def test_figures_of_empty_topics_are_deleted_after_a_minute(
    outbox: OutboxTables, connection: OutboxConnection
) -> None:
    outbox.execute(
        "INSERT INTO poisonguard_outbox (producer, message_id, topic, body)"
        " SELECT 'shop', 'm-' || n, 'reply-' || n, '' FROM generate_series(1, 50) AS n"
    )
    outbox.put("stays", topic="reply-7")
    backlog_measurement.write(connection)
    outbox.execute("DELETE FROM poisonguard_outbox WHERE message_id <> 'stays'")

    backlog_measurement.write(connection)
    assert len(outbox.execute(FIGURES)) == 50
    outbox.execute(AGE)
    backlog_measurement.write(connection)

    assert outbox.execute(FIGURES) == [("reply-7", 1, True)]


def test_an_empty_outbox_has_one_fresh_figure(
    outbox: OutboxTables, connection: OutboxConnection
) -> None:
    for topic in ("a", "b"):
        outbox.put(topic, topic=topic)
    backlog_measurement.write(connection)
    outbox.execute("DELETE FROM poisonguard_outbox")
    backlog_measurement.write(connection)
    for _ in range(2):
        outbox.execute(AGE)
        backlog_measurement.write(connection)
        assert outbox.execute(FIGURES) == [("a", 0, True)]

    outbox.put("again", topic="b")
    backlog_measurement.write(connection)
    assert outbox.execute(FIGURES) == [("a", 0, True), ("b", 1, True)]


def prune(connection: OutboxConnection) -> None:
    pruning.prune(connection, rows_for=timedelta(days=7), ids_for=timedelta(days=30))


def age_rows(outbox: OutboxTables, *, days: int) -> None:
    for table in ("poisonguard_outbox", "poisonguard_outbox_sent"):
        outbox.execute(
            f"UPDATE {table} SET sent_at = sent_at - %s * interval '1 day'", [days]
        )
    outbox.execute(
        "UPDATE poisonguard_outbox SET created_at = created_at - %s * interval '1 day'",
        [days],
    )


def test_a_row_that_another_program_marked_as_a_duplicate_stays(
    outbox: OutboxTables, connection: OutboxConnection
) -> None:
    outbox.drop_unique_index()
    other = outbox.put("other")
    by_hand = [outbox.put("by hand"), outbox.put("by hand too")]
    original = outbox.put("quarantined")
    outbox.put("quarantined")
    outbox.put("sent")
    outbox.execute(
        "UPDATE poisonguard_outbox SET duplicate_of = CASE row_id"
        " WHEN %s THEN %s WHEN %s THEN row_id ELSE %s END WHERE row_id <> ALL (%s)",
        [by_hand[0], other, by_hand[1], original, [other, original]],
    )
    outbox.execute(
        "INSERT INTO poisonguard_outbox_sent (producer, message_id, digest)"
        " VALUES ('shop', 'sent', '')"
    )
    age_rows(outbox, days=8)

    prune(connection)

    rows = outbox.execute("SELECT row_id FROM poisonguard_outbox ORDER BY row_id")
    assert [row_id for (row_id,) in rows] == [other, *by_hand, original]


def test_an_id_stays_until_its_duplicates_are_deleted(
    outbox: OutboxTables, connection: OutboxConnection
) -> None:
    outbox.put("sent")
    outbox.execute("UPDATE poisonguard_outbox SET duplicate_of = row_id")
    outbox.execute(
        "INSERT INTO poisonguard_outbox_sent (producer, message_id, digest, sent_at)"
        " VALUES ('shop', 'sent', '', now() - interval '29 days'),"
        " ('shop', 'past', '', now() - interval '29 days')"
    )
    ids = "SELECT message_id FROM poisonguard_outbox_sent"
    age_rows(outbox, days=2)
    prune(connection)
    assert (outbox.count(), outbox.execute(ids)) == (1, [("sent",)])

    age_rows(outbox, days=6)
    prune(connection)
    assert (outbox.count(), outbox.execute(ids)) == (0, [])
