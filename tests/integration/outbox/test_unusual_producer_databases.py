"""Producers' databases of another encoding, and other settings than usual."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
from django.test import Client

from apps.core.errors import Unavailable
from apps.outbox import (
    outbox_row_decisions,
    producer_database_answer_limits,
    table_inspection,
)
from apps.outbox.outbox_row_decisions import RowFilter
from apps.team.models import User
from apps.team.rights import Role, Scope
from poisonguard.outbox.postgres_schema import schema
from tests.contracts.postgres_and_zookeeper_lock_fixtures import LinkProxy
from tests.database_removal import drop_database
from tests.in_memory_queue_broker import Queues
from tests.integration.api.schema_checking_client import program
from tests.integration.outbox.outbox_builders import outbox_at
from tests.integration.outbox.test_sweeping_registered_outboxes import sweeping
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.sdk.outbox_sweeping.sweeper_with_recording_publisher import (
    RecordingPublisher,
    RecordingReporter,
    work_until,
)
from tests.sdk.outbox_sweeping.sweeper_with_recording_publisher import (
    sweeping as sdk_sweeping,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def tables_in(encoding: str) -> Iterator[tuple[str, OutboxTables]]:
    """Make a database of an encoding; give its address, and its tables."""
    url, name = os.environ["DATABASE_URL"], f"outbox_{uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C'"
            " TEMPLATE template0"
        )
        dsn = urlsplit(url)._replace(path=f"/{name}").geturl()
        tables = OutboxTables(f"{dsn}?client_encoding=UTF8")
        try:
            tables.make()
            yield dsn, tables
        finally:
            tables.close()
            drop_database(name, server)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_names_are_sent_whatever_the_encoding_of_the_database(
    encoding: str, broker: Queues
) -> None:
    with tables_in(encoding) as (dsn, tables):
        registered = outbox_at(dsn)
        tables.put("m-é", topic="Aufträge", key="Ã©")
        with sweeping():
            wait_until(lambda: not tables.waiting)
        (row,) = outbox_row_decisions.find(
            registered, RowFilter(topic="Aufträge"), most=9
        )
        locks = tables.execute("SELECT name FROM poisonguard_lock_resources")

    (message,) = broker.published
    assert (message.topic, message.key, message.dedupe) == (
        "Aufträge",
        "Ã©",
        "shop/m-é",
    )
    assert row.message_id == "m-é"
    assert locks == [("outbox:public",)]  # as other sweepers have it


def test_a_row_that_cannot_be_read_keeps_no_other_from_its_report() -> None:
    publisher, reporter = RecordingPublisher(), RecordingReporter()
    with tables_in("SQL_ASCII") as (_, tables):
        tables.allow_nulls()
        waiting = tables.put("m-1", topic="orders")
        quarantined = tables.put("m-2", topic="orders")
        tables.execute(
            "UPDATE poisonguard_outbox"
            " SET message_id = message_id || convert_from(%s, 'SQL_ASCII'),"
            " quarantined_at = CASE WHEN row_id = %s THEN now() END",
            [b"\xff", quarantined],
        )
        null = tables.put(None)
        tables.put("m-4", topic="invoices")
        with sdk_sweeping(tables.dsn, publisher, reporter=reporter) as sweeper:
            work_until(sweeper, lambda: len(reporter.by_row()) == 3)

    assert publisher.counts == {"m-4": 1}
    reports = reporter.by_row()
    assert reports.keys() == {waiting, quarantined, null}
    assert "invalid byte sequence" in reports[waiting].reason
    assert "invalid byte sequence" in reports[quarantined].reason
    assert reports[null].reason == "message_id is NULL"


def test_a_row_that_is_no_text_hides_no_other_and_is_decided(client: Client) -> None:
    with tables_in("SQL_ASCII") as (dsn, tables):
        registered = outbox_at(dsn)
        good, bad = tables.put("m-é"), tables.put("m-2")
        tables.execute(
            "UPDATE poisonguard_outbox SET message_id = convert_from(%s, 'SQL_ASCII'),"
            " producer = convert_from(%s, 'SQL_ASCII'), quarantined_at = now()"
            " WHERE row_id = %s",
            [b"m-\xff", b"\xe9", bad],
        )
        operator = program(
            Scope.BROKERS_READ, Scope.POISONS_READ, Scope.OPERATIONS_WRITE
        )
        path = f"outboxes/{registered.pk}/rows"

        listed = operator.get(path)
        dropped = operator.post(f"{path}/{bad}/drop", {})

        assert listed.status == dropped.status == 200
        assert [
            (row["row_id"], row["message_id"]) for row in listed.json["results"]
        ] == [(bad, "m-\N{REPLACEMENT CHARACTER}"), (good, "m-é")]
        assert dropped.json["state"] == "dropped"
        client.force_login(User.objects.create_user("anna", role=Role.ADMIN))
        page = client.get(f"/outboxes/{registered.pk}/rows").content.decode()
        assert "m-é" in page
        assert f">{bad}<" in page


def test_no_name_is_sent_cut() -> None:
    publisher, reporter = RecordingPublisher(), RecordingReporter()
    longest = "é" * 255
    with tables_in("SQL_ASCII") as (_, tables):
        tables.execute(
            "ALTER TABLE poisonguard_outbox DROP CONSTRAINT poisonguard_outbox_names"
        )
        tables.put(longest)
        refused, longer = tables.put("é" * 300), tables.put("é" * 511)
        with sdk_sweeping(tables.dsn, publisher, reporter=reporter) as sweeper:
            work_until(sweeper, lambda: len(reporter.by_row()) == 2)

    assert publisher.counts == {longest: 1}
    reports = reporter.by_row()
    assert reports[refused].reason == "message_id has more than 255 characters"
    assert "invalid byte sequence" in reports[longer].reason  # of half a letter


def test_an_inspection_has_one_deadline(
    outbox: OutboxTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_inspection, "INSPECTION_SECONDS", 1.0)
    registered = outbox_at(outbox.dsn)
    outbox.execute("DROP TABLE poisonguard_outbox")
    outbox.execute(
        "CREATE VIEW poisonguard_outbox AS"
        " SELECT 101 AS row_id, '' AS producer, '' AS message_id FROM pg_sleep(60)"
    )
    began = monotonic()

    (finding,) = table_inspection.findings(url=registered.url, schema="")

    assert monotonic() - began < 8
    assert finding.detail == "it took longer than 1 seconds in all"


def test_more_bytes_than_a_page_takes_are_not_read(
    outbox: OutboxTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered = outbox_at(outbox.dsn)
    outbox.put_many(500)
    assert len(outbox_row_decisions.find(registered, RowFilter(), most=200)) == 200
    assert table_inspection.findings(url=registered.url, schema="") == []

    monkeypatch.setattr(producer_database_answer_limits, "MOST_BYTES", 3_000)

    with pytest.raises(Unavailable, match="answered with more than 3,000 bytes"):
        outbox_row_decisions.find(registered, RowFilter(), most=200)


def test_a_commit_that_is_not_answered_ends(
    outbox: OutboxTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_row_decisions, "ANSWER_SECONDS", 1.0)
    address = urlsplit(outbox.dsn)
    assert address.port is not None
    proxy = LinkProxy(address.port)
    registered = outbox_at(outbox.dsn.replace(f":{address.port}/", f":{proxy.port}/"))
    proxy.silence_after(b"COMMIT")

    with (
        pytest.raises(Unavailable, match="longer than 1 seconds in all"),
        outbox_row_decisions.session(registered) as connection,
    ):
        connection.execute("SELECT 1")

    proxy.close()


def test_notices_without_an_end_are_cut(
    outbox: OutboxTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_database_answer_limits, "MOST_BYTES", 100_000)
    registered = outbox_at(outbox.dsn)
    outbox.execute(
        "CREATE FUNCTION flood() RETURNS integer LANGUAGE plpgsql AS $$"
        " BEGIN LOOP RAISE NOTICE '%', repeat('x', 1000); END LOOP; END $$"
    )
    outbox.execute("DROP TABLE poisonguard_outbox")
    outbox.execute(
        "CREATE VIEW poisonguard_outbox AS"
        " SELECT 101 AS row_id, '' AS producer, '' AS message_id FROM flood()"
    )

    (finding,) = table_inspection.findings(url=registered.url, schema="")
    with (
        pytest.raises(Unavailable, match="answered with more than 100,000 bytes"),
        outbox_row_decisions.session(registered) as connection,
    ):
        connection.execute("SELECT flood()")

    assert finding.detail == "it answered with more than 100,000 bytes"


def test_rows_are_read_whatever_style_of_dates_the_database_has(
    outbox: OutboxTables,
) -> None:
    registered = outbox_at(outbox.dsn)
    outbox.put("m-1")
    name = urlsplit(outbox.dsn).path.removeprefix("/")
    outbox.execute(f"ALTER DATABASE {name} SET datestyle = 'German'")
    try:
        (row,) = outbox_row_decisions.find(registered, RowFilter(), most=9)
    finally:
        outbox.execute(f"ALTER DATABASE {name} RESET datestyle")
    assert row.created_at == outbox.column("created_at", row.row_id)


def test_the_lock_is_that_of_the_schema_of_the_outbox(
    outbox: OutboxTables, broker: Queues
) -> None:
    name = "the shop's \\"
    outbox.execute(f'CREATE SCHEMA "{name}"')
    outbox.execute(f'SET search_path = "{name}"')
    outbox.connection.execute(schema())
    outbox.put_many(1)
    registered = outbox_at(outbox.dsn, schema=name)

    assert table_inspection.findings(url=registered.url, schema=name) == []
    with sweeping():
        wait_until(lambda: not outbox.waiting)

    locks = "SELECT name FROM poisonguard_lock_resources"
    assert outbox.execute(locks) == [(f"outbox:{name}",)]
    outbox.execute("SET search_path = public")
    assert outbox.execute(locks) == []
    outbox.execute(f'DROP SCHEMA "{name}" CASCADE')
