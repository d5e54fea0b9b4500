"""Load all classes that a nightly report needs, for Java to write them to an archive.

Tests start Spark about twenty times, and most of a start is the loading of classes. Run
this with `-XX:ArchiveClassesAtExit=FILE` in SPARK_SUBMIT_OPTS; with
`-XX:SharedArchiveFile=FILE` Java then maps them from there instead (JEP 350).
"""

from __future__ import annotations

from datetime import date
from tempfile import TemporaryDirectory

from spark import session
from spark.fact_sql_statements import FactWindow
from spark.jobs.nightly_failure_rate import Report, measure
from spark.lake_schemas import FACTS, LakeKind, schema
from spark.parquet_lake import Lake, RunAttempt

DAY = date(2026, 11, 20)


def main() -> None:
    with TemporaryDirectory() as folder, session.start("class data") as spark:
        java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        window = FactWindow(first=DAY, last=DAY, snapshot="00000003-0000001B-1")
        report = Report(attempt=RunAttempt(run=1, epoch=1), window=window, lake=folder)
        lake = Lake(spark, folder)
        for kind in FACTS:
            nothing = spark.createDataFrame([], schema(kind))
            lake.write(kind, nothing, report.attempt)
        measure(lake, report)
        lake.read(LakeKind.RATES, report.attempt, report.days).toArrow()
    # Java writes the archive at its end, which closing its stdin causes.
    java.stdin.close()
    java.wait()


if __name__ == "__main__":
    main()
