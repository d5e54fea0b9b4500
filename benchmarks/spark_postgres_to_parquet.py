"""Copy facts from Postgres to Parquet: by Spark in parallel, against one ADBC thread.

Both run the same query on the same failures. Spark reads pieces of the table, and
writes by day; the baseline writes all rows of one cursor to one file.
"""

from __future__ import annotations

import shutil
import tempfile
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
from adbc_driver_postgresql import dbapi

from benchmarks._benchmark_harness import compare, product

NUMBER = 400_000
FIRST, LAST = date(2026, 11, 1), date(2026, 11, 7)

_FILL = """
INSERT INTO poison_failure (day, poison_id, problem_id, report_id, bookmark, cause,
    error_type, error_message, traceback, client_name, attempts, failures, crashes,
    first_failed_at, failed_at, captured_at, is_first)
SELECT at::date, n, %(problem)s, gen_random_uuid(), int8send(n), 'exhausted',
    'ValueError', 'I am superstitious',
    repeat('File "billing.py", line 13' || chr(10), 12), 'billing-1', 3, 3, 0,
    at, at, at, true
FROM generate_series(1, %(number)s) n
CROSS JOIN LATERAL (SELECT timestamptz '2026-11-01 00:00+00'
                           + n * interval '7 days' / (%(number)s + 1) AS at) moment
"""


def fill(database_url: str) -> None:
    """Add rows of failures to Postgres by SQL."""
    from tests.failure_report_builders import poisons

    (poison,) = poisons(datetime(2026, 11, 1, tzinfo=UTC) - timedelta(days=9), 1)
    with psycopg.connect(database_url, autocommit=True) as opened:
        values = {"number": NUMBER, "problem": poison.problem_id}
        opened.execute(_FILL, values)
        opened.execute("VACUUM ANALYZE poison_failure")


def main(folder: Path) -> None:
    """Copy failures from Postgres to Parquet in both ways; print the ratio."""
    from apps.core import shared_postgres_snapshot
    from apps.reports.spark_job_process import database_url
    from spark import fact_sql_statements, postgres_reading_and_writing, session
    from spark.fact_sql_statements import FactWindow
    from spark.lake_schemas import LakeKind
    from spark.parquet_lake import Lake, RunAttempt

    fill(database_url())
    with (
        shared_postgres_snapshot.open_snapshot() as held_snapshot,
        session.start("extract") as spark,
    ):
        window = FactWindow(first=FIRST, last=LAST, snapshot=held_snapshot.name)
        (whole,) = fact_sql_statements.statements(
            LakeKind.FAILURES, window, lambda _: [("poison_failure", 1)]
        )

        def ours() -> None:
            shutil.rmtree(folder / "lake", ignore_errors=True)
            rows = postgres_reading_and_writing.read(spark, LakeKind.FAILURES, window)
            lake = Lake(spark, str(folder / "lake"))
            lake.write(LakeKind.FAILURES, rows, RunAttempt(run=1, epoch=1))

        def plain() -> None:
            with dbapi.connect(database_url()) as opened, opened.cursor() as cursor:
                cursor.execute(whole)
                batches = cursor.fetch_record_batch()
                with pq.ParquetWriter(folder / "plain.parquet", batches.schema) as file:
                    for batch in batches:
                        file.write_batch(batch)

        compare(
            f"{NUMBER:,} failures to Parquet",
            number=NUMBER,
            ours=ours,
            baseline=plain,
            named="ADBC on one thread",
        )
        assert spark.read.parquet(str(folder / "lake/failures")).count() == NUMBER
        assert pq.read_metadata(folder / "plain.parquet").num_rows == NUMBER


if __name__ == "__main__":
    with product(), tempfile.TemporaryDirectory(prefix="pw-bench-") as scratch:
        main(Path(scratch))
