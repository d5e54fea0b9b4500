"""Read facts from Postgres in one snapshot, and write measures in one transaction.

Only the driver has DATABASE_URL in its environment. Executors get it inside the pickled
reader, which Spark neither prints nor logs: an option would show in the plan, and
spark.executorEnv in the event log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING

from adbc_driver_postgresql import dbapi
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark import fact_sql_statements, jdbc_reader
from spark.fact_sql_statements import BLOCKS, FactWindow
from spark.lake_schemas import LakeKind
from spark.parquet_lake import RunAttempt

if TYPE_CHECKING:
    import pyarrow as pa

SOURCE = "poisonweb"


def read(
    spark: SparkSession, kind: LakeKind, window: FactWindow, *, blocks: int = BLOCKS
) -> DataFrame:
    """Read one kind of facts, in parallel, as they were in the window's snapshot."""
    with _in_snapshot(window.snapshot, os.environ["DATABASE_URL"]) as cursor:
        statements = fact_sql_statements.statements(
            kind, window, _query(cursor), blocks=blocks
        )
    read_rows = jdbc_reader.read if jdbc_reader.is_configured() else _read_over_adbc
    rows = read_rows(
        spark, statements, fact_sql_statements.COLUMNS[kind], window.snapshot
    )
    if kind is LakeKind.COUNTERS:
        histogram = F.from_json("duration_ms_hist", "map<string, bigint>")
        return rows.withColumn("duration_ms_hist", histogram)
    return rows


def _read_over_adbc(
    spark: SparkSession, statements: Sequence[str], columns: str, snapshot: str
) -> DataFrame:
    """Read the rows of SQL statements over ADBC, each in its own partition."""
    spark.dataSource.register(FactSource)
    options = {"statements": json.dumps(statements), "snapshot": snapshot}
    return spark.read.format(SOURCE).schema(columns).options(**options).load()


def append(tables: Mapping[str, pa.Table]) -> None:
    """Append a report's rows to tables of Postgres, to all of them or to none."""
    with _connect() as connection, connection.cursor() as cursor:
        for name, rows in tables.items():
            cursor.adbc_ingest(name, rows, mode="append")
        connection.commit()


def published_attempts(first: date, last: date) -> dict[date, RunAttempt]:
    """Return the attempt that published each day of a report's window."""
    with _connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT day, run_id, epoch FROM reports_day"
            " JOIN reports_run ON reports_run.id = run_id WHERE day BETWEEN $1 AND $2",
            (first, last),
        )
        return {
            day: RunAttempt(run=run, epoch=epoch)
            for day, run, epoch in cursor.fetchall()
        }


class FactSource(DataSource):
    """A Spark data source of statements: one partition each, read as Arrow batches."""

    @classmethod
    def name(cls) -> str:
        return SOURCE

    def reader(self, schema: StructType) -> FactReader:  # noqa: ARG002 - Spark's
        """Return the reader of the facts' SQL statements; Spark calls this."""
        return FactReader(
            json.loads(self.options["statements"]),
            self.options["snapshot"],
            database_url=os.environ["DATABASE_URL"],
        )


class FactReader(DataSourceReader):
    """Read in Spark's Python workers, each of which has a connection of its own."""

    def __init__(
        self, statements: Sequence[str], snapshot: str, *, database_url: str
    ) -> None:
        self._statements = statements
        self._snapshot = snapshot
        self._database_url = database_url

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each SQL statement that reads facts."""
        return [InputPartition(statement) for statement in self._statements]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition's SQL statement, on an executor."""
        if partition.value is None:  # Spark's placeholder for no partitions
            return
        with _in_snapshot(self._snapshot, self._database_url) as cursor:
            cursor.execute(partition.value)
            yield from cursor.fetch_record_batch()


@contextmanager
def _in_snapshot(snapshot: str, database_url: str) -> Iterator[dbapi.Cursor]:
    """Open a cursor that reads the exported snapshot."""
    with (
        dbapi.connect(database_url, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        yield cursor


def _connect() -> dbapi.Connection:
    """Connect a report's job to the database that DATABASE_URL names, over ADBC."""
    return dbapi.connect(os.environ["DATABASE_URL"])


def _query(cursor: dbapi.Cursor) -> fact_sql_statements.Query:
    """Return a function that runs SQL in a report's snapshot, and returns the rows."""

    def query(statement: str) -> list[tuple[object, ...]]:
        cursor.execute(statement)
        rows: list[tuple[object, ...]] = cursor.fetchall()
        return rows

    return query
