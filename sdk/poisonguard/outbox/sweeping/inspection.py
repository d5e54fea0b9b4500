"""Look at a producer's tables before they are attached, and say what to mend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from poisonguard.outbox import postgres_schema
from poisonguard.outbox.sweeping.connection import Connect, OutboxConnection
from poisonguard.outbox.sweeping.psycopg_import import psycopg, sql
from poisonguard.outbox.sweeping.settings import SweeperSettings
from poisonguard.outbox.sweeping.table_names import NAMES

OUTBOX = NAMES["outbox"]
# What a missing column is added as; the first type is the one that is compared.
COLUMNS: Mapping[str, str] = {
    "row_id": "bigint GENERATED ALWAYS AS IDENTITY",
    "producer": "text",
    "message_id": "text",
    "topic": "text",
    "key": "text NOT NULL DEFAULT ''",
    "body": "bytea",
    "headers": "bytea[] NOT NULL DEFAULT '{}'",
    "created_at": "timestamptz DEFAULT now()",
    "due_at": "timestamptz DEFAULT now()",
    "attempts": "integer DEFAULT 0",
    "claim_token": "uuid",
    "claimed_until": "timestamptz",
    "sent_at": "timestamptz",
    "duplicate_of": "bigint",
    "quarantined_at": "timestamptz",
    "quarantine_cause": "text",
    "quarantine_reason": "text",
    "reported_at": "timestamptz",
    "released_at": "timestamptz",
    "dropped_at": "timestamptz",
    "writer_user": "text",
    "writer_application": "text",
    "writer_address": "inet",
    "writer_transaction": "bigint",
    "written_at": "timestamptz",
}
# Columns of names may have any type: they are read as text.
ANY_TYPE = frozenset({"producer", "message_id", "topic", "key"})
RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")
LOCK_TABLES = ("poisonguard_lock_resources", "poisonguard_lock_tickets")
MOST_DOUBLED = 10_000
COUNT_SECONDS = 10.0

READ_COLUMNS = """
SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped
"""
READ_INDEXES = """
SELECT relation.relname, pg_index.indisvalid,
    ARRAY(SELECT attname::text FROM pg_attribute
          WHERE attrelid = indrelid
            AND attnum = ANY ((indkey::int2[])[0:indnkeyatts - 1])
          ORDER BY attname)
FROM pg_index JOIN pg_class AS relation ON relation.oid = indexrelid
WHERE indrelid = to_regclass(%(table)s) AND indisunique
  AND indpred IS NULL AND indexprs IS NULL
"""
READ_TRIGGERS = """
SELECT tgname::text FROM pg_trigger
WHERE tgrelid = to_regclass(%(table)s) AND tgenabled IN ('O', 'A')
"""
READ_RIGHTS = """
SELECT name, "right", has_table_privilege(to_regclass(name), "right"),
    quote_ident(current_user)
FROM unnest(%(tables)s::text[]) AS name, unnest(%(rights)s::text[]) AS "right"
"""
READ_ROW_SECURITY = """
SELECT quote_ident(current_user), row_security_active(%(table)s::regclass)
"""
READ_NAMES = """
SELECT name, to_regclass(name) IS NOT NULL FROM unnest(%(tables)s::text[]) AS name
"""
READ_SCHEMA = "SELECT to_regnamespace(%(schema)s) IS NOT NULL"
COUNT_DOUBLED = f"""
SELECT count(*) FROM (
    SELECT FROM {{outbox}} GROUP BY producer, message_id
    HAVING count(*) > 1 LIMIT {MOST_DOUBLED}
) AS doubled
"""  # noqa: S608 - made of constants
UNIQUE_SQL = (
    "CREATE UNIQUE INDEX CONCURRENTLY poisonguard_outbox_one_message\n"
    "    ON {table} (producer, message_id);"
)
DOUBLED_SQL = (
    "-- Decide about these first, and delete what is not needed:\n"
    "SELECT producer, message_id, array_agg(row_id) FROM {table}\n"
    "    GROUP BY producer, message_id HAVING count(*) > 1;\n"
)
CREATED = "the SQL for the first missing table creates this one, too"
TRIGGERS = tuple(
    f"{OUTBOX}_{name}" for name in ("writer", "changer", "unmarker", "delayer")
)


class FindingKind(StrEnum):
    """What is wrong with a producer's tables."""

    AWAY = "away"
    MISSING_TABLE = "missing table"
    MISSING_COLUMN = "missing column"
    WRONG_TYPE = "wrong type"
    MISSING_PRIMARY_KEY = "missing primary key"
    MISSING_UNIQUE_INDEX = "missing unique index"
    INVALID_UNIQUE_INDEX = "invalid unique index"
    MISSING_TRIGGER = "missing trigger"
    MISSING_RIGHT = "missing right"
    POOLER = "pooler"


# With these alone rows are sent safely: slower, or without a word about the writer.
HARMLESS = frozenset(
    {
        FindingKind.MISSING_UNIQUE_INDEX,
        FindingKind.INVALID_UNIQUE_INDEX,
        FindingKind.MISSING_TRIGGER,
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong, and the remedy: a sentence, or SQL in `sql`.

    `doubled_ids` counts ids of more than one row, up to 10,000, where these keep an
    index from being made; None also where they could not be counted.
    """

    kind: FindingKind
    detail: str
    remedy: str
    sql: str = ""
    doubled_ids: int | None = None

    @property
    def is_blocking(self) -> bool:
        """Tell whether this fault of outbox tables stops all sending until mended."""
        return self.kind not in HARMLESS


def inspect(connect: Connect, settings: SweeperSettings) -> list[Finding]:
    """Return what is wrong with an outbox's tables, the worst first; [] if nothing."""
    try:
        connection = OutboxConnection(connect, settings)
    except psycopg.Error as error:
        remedy = "check the address, that Postgres runs, and the password"
        return [
            Finding(kind=FindingKind.AWAY, detail=_line(error), remedy=remedy),
        ]
    try:
        findings = Inspection(connection, settings.schema).run()
        return sorted(findings, key=lambda finding: not finding.is_blocking)
    except psycopg.Error as error:
        remedy = "mend this, and look again"
        return [
            Finding(kind=FindingKind.AWAY, detail=_line(error), remedy=remedy),
        ]
    finally:
        connection.close()


class Inspection:
    """The questions to one database."""

    def __init__(self, connection: OutboxConnection, schema: str | None) -> None:
        self._connection = connection
        self._schema = "" if schema is None else sql.Identifier(schema).as_string(None)
        self._prefix = f"{self._schema}." if self._schema else ""
        self._table = self._name(OUTBOX)

    def run(self) -> Iterator[Finding]:
        missing = [*self._missing_tables()]
        yield from missing
        if any(finding.detail == self._table for finding in missing):
            return
        columns = dict(self._connection.execute(READ_COLUMNS, {"table": self._table}))
        yield from self._wrong_columns(columns)
        yield from self._missing_rights()
        yield from self._hidden_rows()
        yield from self._missing_triggers()
        if {"row_id", "producer", "message_id"} <= columns.keys():
            yield from self._missing_indexes()
        if self._connection.is_pooled:
            yield Finding(
                kind=FindingKind.POOLER,
                detail="a pooler stands between this connection and Postgres",
                remedy="connect to Postgres itself, or to a pool of sessions: the lock"
                " of the sweepers belongs to a session",
            )

    def _name(self, table: str) -> str:
        return f"{self._prefix}{table}"

    def _missing_tables(self) -> Iterator[Finding]:
        names = [self._name(table) for table in NAMES.values()]
        values = {"tables": [*names, *LOCK_TABLES]}
        rows = self._connection.execute(READ_NAMES, values)
        missing = [name for name, is_there in rows if not is_there]
        for number, name in enumerate(missing):
            remedy, creation = self._creation() if number == 0 else (CREATED, "")
            yield Finding(
                kind=FindingKind.MISSING_TABLE,
                detail=name,
                remedy=remedy,
                sql=creation,
            )

    def _creation(self) -> tuple[str, str]:
        """Say how missing tables are created, and give the SQL."""
        remedy = "run this SQL, as the role that is to own the tables"
        if not self._schema:
            return remedy, postgres_schema.schema()
        there = f"SET search_path = {self._schema};\n{postgres_schema.schema()}"
        values = {"schema": self._schema}
        if self._connection.execute(READ_SCHEMA, values) == [(True,)]:
            return f"{remedy}: it creates them in the schema {self._schema}", there
        return (
            f"there is no schema {self._schema}: {remedy}, which creates both",
            f"CREATE SCHEMA {self._schema};\n{there}",
        )

    def _wrong_columns(self, columns: Mapping[str, str]) -> Iterator[Finding]:
        for name, definition in COLUMNS.items():
            expected = _long_name(definition)
            if name not in columns:
                yield Finding(
                    kind=FindingKind.MISSING_COLUMN,
                    detail=name,
                    remedy="add the column",
                    sql=f"ALTER TABLE {self._table} ADD COLUMN {name} {definition};",
                )
            elif columns[name] != expected and name not in ANY_TYPE:
                yield Finding(
                    kind=FindingKind.WRONG_TYPE,
                    detail=f"{name} is {columns[name]}, and must be {expected}",
                    remedy="change the column back, by a conversion that you know",
                )

    def _missing_rights(self) -> Iterator[Finding]:
        names = [self._name(table) for table in NAMES.values()]
        values = {"tables": [*names, *LOCK_TABLES], "rights": list(RIGHTS)}
        rows = self._connection.execute(READ_RIGHTS, values)
        for name, right, is_granted, role in rows:
            if is_granted is False:
                yield Finding(
                    kind=FindingKind.MISSING_RIGHT,
                    detail=f"{right} on {name}",
                    remedy="grant it, as an owner of the table",
                    sql=f"GRANT {right} ON {name} TO {role};",
                )

    def _hidden_rows(self) -> Iterator[Finding]:
        """Report where a row security policy may hide rows from the sweeper."""
        values = {"table": self._table}
        ((role, is_active),) = self._connection.execute(READ_ROW_SECURITY, values)
        if is_active:
            yield Finding(
                kind=FindingKind.MISSING_RIGHT,
                detail=f"the row security of {self._table} may hide rows from {role}",
                remedy="let this role see all rows, as a superuser",
                sql=f"ALTER ROLE {role} BYPASSRLS;",
            )

    def _missing_triggers(self) -> Iterator[Finding]:
        rows = self._connection.execute(READ_TRIGGERS, {"table": self._table})
        for name in TRIGGERS:
            if (name,) not in rows:
                yield Finding(
                    kind=FindingKind.MISSING_TRIGGER,
                    detail=f"{name}: who writes a row is not noted",
                    remedy="run the SQL of poisonguard.outbox.postgres_schema.schema()",
                )

    def _missing_indexes(self) -> Iterator[Finding]:
        indexes = self._connection.execute(READ_INDEXES, {"table": self._table})
        if not any(
            is_valid and columns == ["row_id"] for _, is_valid, columns in indexes
        ):
            yield Finding(
                kind=FindingKind.MISSING_PRIMARY_KEY,
                detail="row_id is not unique",
                remedy="give each row a number of its own, and make it the primary key",
                sql=f"ALTER TABLE {self._table} ADD PRIMARY KEY (row_id);",
            )
        ours = [
            (name, is_valid)
            for name, is_valid, columns in indexes
            if columns == ["message_id", "producer"]
        ]
        if not any(is_valid for _, is_valid in ours):
            yield self._missing_unique_index([name for name, _ in ours])

    def _missing_unique_index(self, invalid: list[str]) -> Finding:
        doubled = self._doubled_ids()
        drop = "".join(
            f'DROP INDEX CONCURRENTLY {self._prefix}"{name}";\n' for name in invalid
        )
        return Finding(
            kind=FindingKind.INVALID_UNIQUE_INDEX
            if invalid
            else FindingKind.MISSING_UNIQUE_INDEX,
            detail="ids may come twice, and "
            + (
                "those that do could not be counted in time"
                if doubled is None
                else f"{doubled:,} do"
            ),
            remedy="make the index; until then each window reads the whole table",
            sql=("" if doubled == 0 else DOUBLED_SQL.format(table=self._table))
            + drop
            + UNIQUE_SQL.format(table=self._table),
            doubled_ids=doubled,
        )

    def _doubled_ids(self) -> int | None:
        """Count message ids that several rows have; None where that takes too long."""
        try:
            rows = self._connection.execute_within(COUNT_SECONDS, COUNT_DOUBLED)
        except psycopg.errors.QueryCanceled:
            return None
        return int(rows[0][0])


def _long_name(definition: str) -> str:
    """Return a column's type as Postgres writes it in full."""
    short = definition.split(maxsplit=1)[0]
    return {"timestamptz": "timestamp with time zone"}.get(short, short)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
