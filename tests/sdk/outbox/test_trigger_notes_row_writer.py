"""The triggers note who wrote a row, or changed it last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
import pytest

INSERT = """
INSERT INTO poisonguard_outbox (producer, message_id, topic, key, body, headers)
VALUES ('shop', %s, 'orders', 'k', %s, '{n,v}')
"""
WRITER = """
SELECT writer_user, writer_application, writer_address, writer_transaction, written_at
FROM poisonguard_outbox
"""
MARKS = (
    "claim_token = gen_random_uuid(), claimed_until = now(), attempts = attempts + 1",
    "claim_token = NULL, due_at = now() + interval '1 minute'",
    "sent_at = now(), claim_token = NULL",
    "duplicate_of = 7",
    "quarantined_at = now(), quarantine_cause = 'manual', quarantine_reason = 'why'",
    "reported_at = now()",
    "dropped_at = now()",
)
CHANGES = (
    "producer = 'shop 2'",
    "message_id = 'm-2'",
    "topic = 'invoices'",
    "key = ''",
    "body = 'other'",
    "headers = '{}'",
    "writer_user = 'innocent'",
    "writer_application = 'innocent'",
    "writer_address = '192.0.2.7'",
    "writer_transaction = 7",
    "written_at = NULL",
)


class Writer(NamedTuple):
    user: str
    application: str
    address: Any
    transaction: int
    at: Any


@pytest.fixture
def corrupter(outbox_dsn: str) -> Iterator[psycopg.Connection]:
    """Write a row as one application; yield the connection of another."""
    with psycopg.connect(outbox_dsn, application_name="web 7") as first:
        first.execute(INSERT, ["m-1", b"good"])
    with psycopg.connect(
        outbox_dsn, application_name="repair script", autocommit=True
    ) as connection:
        yield connection


def writer(connection: psycopg.Connection) -> Writer:
    (row,) = connection.execute(WRITER).fetchall()
    return Writer(*row)


def test_an_insert_notes_user_application_address_and_transaction(
    outbox_dsn: str,
) -> None:
    with psycopg.connect(outbox_dsn, application_name="web 7") as connection:
        connection.execute(INSERT, ["m-1", b"good"])
        query = "SELECT session_user, inet_client_addr(), txid_current(), now()"
        ((user, address, transaction, now),) = connection.execute(query).fetchall()
        row = writer(connection)

    assert row[:4] == (user, "web 7", address, transaction)
    assert row.at >= now
    assert str(row.address) == "127.0.0.1"


def test_an_insert_cannot_name_another_writer(outbox_dsn: str) -> None:
    with psycopg.connect(outbox_dsn, application_name="web 7") as connection:
        connection.execute(
            "INSERT INTO poisonguard_outbox (producer, message_id, topic, body,"
            " writer_user, writer_application) VALUES ('s', 'm', 't', '', 'x', 'y')"
        )

        row = writer(connection)

    assert (row.user, row.application) != ("x", "y")
    assert row.application == "web 7"


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_names_who_changed_the_row(
    corrupter: psycopg.Connection, change: str
) -> None:
    before = writer(corrupter)

    corrupter.execute(f"UPDATE poisonguard_outbox SET {change}")

    after = writer(corrupter)
    assert (before.application, after.application) == ("web 7", "repair script")
    assert after.user == before.user  # of one session user
    assert after.transaction > before.transaction
    assert after.at > before.at


@pytest.mark.parametrize(
    "column", ["sent_at", "duplicate_of", "quarantined_at, reported_at"]
)
def test_taking_back_a_mark_names_who_did(
    corrupter: psycopg.Connection, column: str
) -> None:
    first, *_ = column.split(", ")
    value = "9" if first == "duplicate_of" else "now()"
    corrupter.execute(f"UPDATE poisonguard_outbox SET {first} = {value}")
    marked = writer(corrupter)

    corrupter.execute(f"UPDATE poisonguard_outbox SET {first} = NULL")

    assert (marked.application, writer(corrupter).application) == (
        "web 7",
        "repair script",
    )


def test_marks_of_a_sweeper_name_it_in_no_row(corrupter: psycopg.Connection) -> None:
    before = writer(corrupter)

    for marks in MARKS:
        corrupter.execute(f"UPDATE poisonguard_outbox SET {marks}")
        assert writer(corrupter) == before, marks
    corrupter.execute(
        "UPDATE poisonguard_outbox SET quarantined_at = NULL, released_at = now()"
    )
    assert writer(corrupter) == before
    corrupter.execute("UPDATE poisonguard_outbox SET body = body, topic = topic")
    assert writer(corrupter) == before


def test_a_mark_reads_no_body(corrupter: psycopg.Connection) -> None:
    corrupter.execute("UPDATE poisonguard_outbox SET key = 'small'")  # warms up
    corrupter.execute(
        "UPDATE poisonguard_outbox SET body = ("
        " SELECT string_agg(decode(md5(n::text), 'hex'), '')"
        " FROM generate_series(1, 65536) AS n)"  # a MiB in 128 pages and more
    )
    plan = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) UPDATE poisonguard_outbox SET "

    pages = [
        corrupter.execute(plan + change).fetchone()[0][0]["Plan"]["Shared Hit Blocks"]  # type: ignore[index]
        for change in ("sent_at = now()", "body = body")
    ]

    assert pages[0] < 64 < 128 < pages[1]


def test_a_role_that_was_set_does_not_hide_who_signed_in(
    corrupter: psycopg.Connection,
) -> None:
    before = writer(corrupter)
    for statement in (
        "CREATE ROLE poisonguard_test_hidden",
        "GRANT poisonguard_test_hidden TO CURRENT_USER",
        "GRANT SELECT, UPDATE ON poisonguard_outbox TO poisonguard_test_hidden",
    ):
        corrupter.execute(statement)
    try:
        corrupter.execute("SET ROLE poisonguard_test_hidden")
        corrupter.execute("UPDATE poisonguard_outbox SET body = 'other'")
    finally:
        corrupter.execute("RESET ROLE")
        corrupter.execute(
            "REVOKE ALL ON poisonguard_outbox FROM poisonguard_test_hidden"
        )
        corrupter.execute("DROP ROLE poisonguard_test_hidden")

    assert writer(corrupter).user == before.user
    assert writer(corrupter).application == "repair script"
