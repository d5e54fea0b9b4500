"""What the inspection finds in a table, with the SQL that mends it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from poisonguard.outbox.postgres_schema import schema
from poisonguard.outbox.sweeping import inspection
from poisonguard.outbox.sweeping.connection import connecting_to
from poisonguard.outbox.sweeping.inspection import Finding, FindingKind, inspect
from poisonguard.outbox.sweeping.settings import SweeperSettings
from tests.brokers import pgbouncer
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables


def findings(outbox: OutboxTables, *, schema: str | None = None) -> list[Finding]:
    return inspect(connecting_to(outbox.dsn), SweeperSettings(schema=schema))


def test_a_table_of_the_schema_has_no_findings(outbox: OutboxTables) -> None:
    assert findings(outbox) == []


def test_another_schema_is_looked_at_by_its_name(outbox: OutboxTables) -> None:
    outbox.execute('CREATE SCHEMA "odd ""name"')
    outbox.execute('SET search_path = "odd ""name"')
    outbox.connection.execute(schema())

    assert findings(outbox, schema='odd "name') == []
    outbox.execute("DROP TABLE poisonguard_outbox_sent")
    (finding,) = findings(outbox, schema='odd "name')
    assert finding.detail == '"odd ""name".poisonguard_outbox_sent'
    outbox.execute('DROP SCHEMA "odd ""name" CASCADE')


def test_without_the_table_nothing_else_is_said(outbox: OutboxTables) -> None:
    outbox.execute("DROP TABLE poisonguard_outbox")

    (finding,) = findings(outbox)

    assert finding.kind is FindingKind.MISSING_TABLE
    assert finding.is_blocking
    outbox.connection.execute(schema())
    assert findings(outbox) == []


@pytest.mark.parametrize("has_schema", [True, False])
def test_missing_tables_are_created_by_the_sql_in_their_schema(
    outbox: OutboxTables, has_schema: bool
) -> None:
    if has_schema:
        outbox.execute('CREATE SCHEMA "odd ""name"')

    first, *others = findings(outbox, schema='odd "name')

    assert first.detail == '"odd ""name".poisonguard_outbox'
    missing = 'there is no schema "odd ""name"'
    assert (missing in first.remedy) != has_schema
    assert others
    assert not any(each.sql for each in others)
    outbox.connection.execute(first.sql)
    assert findings(outbox, schema='odd "name') == []
    outbox.execute('DROP SCHEMA "odd ""name" CASCADE')


def test_missing_tables_without_a_schema_are_created_by_the_sql(
    outbox: OutboxTables,
) -> None:
    outbox.execute("DROP TABLE poisonguard_outbox, poisonguard_outbox_sent")

    first, second = findings(outbox)

    assert "first missing table" in second.remedy
    outbox.connection.execute(first.sql)
    assert findings(outbox) == []


@pytest.mark.parametrize("doubled", [0, 2])
def test_a_missing_unique_index_is_mended_by_its_sql(
    outbox: OutboxTables, doubled: int
) -> None:
    outbox.drop_unique_index()
    for number in range(doubled):
        outbox.put(f"twice-{number}")
        outbox.put(f"twice-{number}")

    (finding,) = findings(outbox)

    assert finding.kind is FindingKind.MISSING_UNIQUE_INDEX
    assert not finding.is_blocking
    assert finding.doubled_ids == doubled
    *_, create = finding.sql.rpartition("CREATE")
    assert ("HAVING count(*) > 1" in finding.sql) == bool(doubled)
    outbox.execute("DELETE FROM poisonguard_outbox")
    outbox.execute(f"CREATE{create}")
    assert findings(outbox) == []


def test_an_index_that_failed_half_way_is_named(outbox: OutboxTables) -> None:
    outbox.drop_unique_index()
    outbox.put("twice")
    outbox.put("twice")
    with pytest.raises(psycopg.errors.UniqueViolation):
        outbox.execute(
            "CREATE UNIQUE INDEX CONCURRENTLY poisonguard_outbox_one_message"
            " ON poisonguard_outbox (producer, message_id)"
        )

    (finding,) = findings(outbox)

    assert finding.kind is FindingKind.INVALID_UNIQUE_INDEX
    assert finding.doubled_ids == 1
    outbox.execute("DELETE FROM poisonguard_outbox")
    _, drop, create = finding.sql.rpartition("DROP")
    for statement in f"{drop}{create}".split(";"):
        if statement.strip():
            outbox.execute(statement)
    assert findings(outbox) == []


@pytest.mark.parametrize("on", ["(producer)", "(producer, message_id, topic)"])
def test_an_index_of_other_columns_does_not_count(
    outbox: OutboxTables, on: str
) -> None:
    outbox.drop_unique_index()
    outbox.execute(f"CREATE UNIQUE INDEX ON poisonguard_outbox {on}")
    outbox.execute(
        "CREATE UNIQUE INDEX ON poisonguard_outbox (producer, message_id)"
        " WHERE topic = 'orders'"
    )

    assert [f.kind for f in findings(outbox)] == [FindingKind.MISSING_UNIQUE_INDEX]


def test_an_index_may_include_other_columns(outbox: OutboxTables) -> None:
    outbox.drop_unique_index()
    outbox.execute(
        "ALTER TABLE poisonguard_outbox DROP CONSTRAINT poisonguard_outbox_pkey"
    )
    for on in ("(producer, message_id) INCLUDE (topic)", "(row_id) INCLUDE (topic)"):
        outbox.execute(f"CREATE UNIQUE INDEX ON poisonguard_outbox {on}")
    assert findings(outbox) == []


def test_columns_triggers_and_keys_are_compared(outbox: OutboxTables) -> None:
    outbox.execute("ALTER TABLE poisonguard_outbox DROP reported_at")
    outbox.execute("ALTER TABLE poisonguard_outbox ALTER attempts TYPE bigint")
    outbox.execute(
        "ALTER TABLE poisonguard_outbox DROP CONSTRAINT poisonguard_outbox_pkey"
    )
    outbox.execute(
        "ALTER TABLE poisonguard_outbox DISABLE TRIGGER poisonguard_outbox_writer"
    )

    results = findings(outbox)

    assert [(finding.kind, finding.is_blocking) for finding in results] == [
        (FindingKind.WRONG_TYPE, True),
        (FindingKind.MISSING_COLUMN, True),
        (FindingKind.MISSING_PRIMARY_KEY, True),
        (FindingKind.MISSING_TRIGGER, False),
    ]
    assert results[0].detail == "attempts is bigint, and must be integer"
    for finding in (results[1], results[2]):
        outbox.execute(finding.sql)
    assert [finding.kind for finding in findings(outbox)] == [
        FindingKind.WRONG_TYPE,
        FindingKind.MISSING_TRIGGER,
    ]


def test_missing_rights_are_named_with_their_grant(outbox: OutboxTables) -> None:
    outbox.execute("CREATE ROLE inspected LOGIN PASSWORD 'secret'")
    ((me,),) = outbox.execute("SELECT current_user")
    outbox.execute(f"GRANT inspected TO {me}")
    database = urlsplit(outbox.dsn).path[1:]
    outbox.execute(f"GRANT CONNECT ON DATABASE {database} TO inspected")
    outbox.execute("GRANT USAGE ON SCHEMA public TO inspected")
    outbox.execute(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public"
        " TO inspected"
    )
    outbox.execute("REVOKE UPDATE ON poisonguard_outbox FROM inspected")
    address = urlsplit(outbox.dsn)
    place = f"inspected:secret@{address.hostname}:{address.port}"
    dsn = address._replace(netloc=place).geturl()

    results = inspect(connecting_to(dsn), SweeperSettings())

    outbox.execute("DROP OWNED BY inspected")
    outbox.execute("DROP ROLE inspected")
    (finding,) = results
    assert finding.kind is FindingKind.MISSING_RIGHT
    assert finding.sql == "GRANT UPDATE ON poisonguard_outbox TO inspected;"


def test_rows_that_a_policy_may_hide_are_a_finding(outbox: OutboxTables) -> None:
    outbox.execute("ALTER TABLE poisonguard_outbox ENABLE ROW LEVEL SECURITY")
    assert findings(outbox) == []  # of another role: an owner sees all rows
    outbox.execute("ALTER TABLE poisonguard_outbox FORCE ROW LEVEL SECURITY")

    (finding,) = findings(outbox)

    assert finding.is_blocking
    assert "row security of poisonguard_outbox may hide rows" in finding.detail
    assert finding.sql.endswith("BYPASSRLS;")


def test_a_table_too_large_to_count_doubled_ids_has_its_finding(
    outbox: OutboxTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox.drop_unique_index()
    outbox.put_many(20_000)
    monkeypatch.setattr(inspection, "COUNT_SECONDS", 0.001)

    (finding,) = findings(outbox)

    assert finding.kind is FindingKind.MISSING_UNIQUE_INDEX
    assert "could not be counted in time" in finding.detail
    assert finding.doubled_ids is None
    assert "HAVING count(*) > 1" in finding.sql


def test_a_database_that_is_away_is_a_finding(outbox: OutboxTables) -> None:
    dsn = urlsplit(outbox.dsn)._replace(path="/missing").geturl()

    (finding,) = inspect(connecting_to(dsn), SweeperSettings())

    assert finding.kind is FindingKind.AWAY
    assert '"missing"' in finding.detail


@pytest.mark.needs("pgbouncer")
def test_a_pooler_is_noticed(outbox: OutboxTables, tmp_path: Path) -> None:
    with pgbouncer.running(tmp_path, outbox.dsn, mode="transaction") as dsn:
        (finding,) = inspect(connecting_to(dsn), SweeperSettings())

    assert finding.kind is FindingKind.POOLER
    assert finding.is_blocking
