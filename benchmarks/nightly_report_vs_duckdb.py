"""The nightly report without reading Postgres: a month of facts in Parquet to measures.

The program runs against DuckDB on the same files with as many threads; both write their
results to Parquet, and these must be equal. NIGHT_EVENTS sets how many facts
(1,000,000). The target of a later release is 1/3.5 = 0.29.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from datetime import date
from pathlib import Path
from string import Template

import duckdb

from benchmarks._benchmark_harness import compare
from spark import session
from spark.fact_sql_statements import FactWindow
from spark.jobs import nightly_failure_rate as job
from spark.lake_schemas import LakeKind
from spark.parquet_lake import Lake, RunAttempt

EVENTS = int(os.environ.get("NIGHT_EVENTS", "1_000_000"))
FIRST, LAST = date(2026, 11, 1), date(2026, 11, 28)
THREADS = 2

# Few topics are busy, most are quiet.
_PLACE = """
    date '2026-11-01' + (i % 28)::int AS day, '1-1' AS run,
    timestamptz '2026-11-01 00:00:00+00' + to_days((i % 28)::int)
        + to_seconds((hash(i) % 86400)::int) AS "at",
    least(hash(i + 1) % 30, hash(i + 2) % 30) AS t, hash(i + 3) % 4 AS g,
    'topic ' || t AS topic, 'group ' || g AS consumer_group
"""
_PROBLEM = "((t * 4 + g) * 5 + hash(i + 4) % 5)::bigint AS problem"
# Two groups count deliveries themselves, for one its broker does, for one none does.
_FACT_QUERIES = {
    LakeKind.FAILURES: f"""
        SELECT {_PLACE}, {_PROBLEM}, i AS poison, 'exhausted' AS cause,
               hash(i + 5) % 4 > 0 AS is_first, (hash(i + 6) % 6)::int AS attempts
        FROM range({EVENTS * 45 // 100}) events(i)
    """,
    LakeKind.COUNTERS: f"""
        SELECT {_PLACE}, 'client ' || hash(i + 4) % 3 AS client_name,
               CASE WHEN g < 2 THEN 'sdk' ELSE 'broker' END AS source,
               (hash(i + 5) % 1000)::bigint AS handled,
               (hash(i + 6) % 3)::bigint AS failed,
               (hash(i + 7) % 2)::bigint AS skipped,
               (hash(i + 8) % 4)::bigint AS retried,
               map_from_entries([
                   ((hash(i + 9) % 6 + b)::text, (hash(i + b) % 90)::bigint)
                   for b in range(6)
               ]) AS duration_ms_hist
        FROM range({EVENTS * 45 // 100}) events(i) WHERE hash(i + 3) % 4 < 3
    """,
    LakeKind.DECISIONS: f"""
        SELECT {_PLACE}, {_PROBLEM},
               ['redriven', 'confirmed', 'recurred', 'dropped'][
                   (1 + hash(i + 5) % 4)::int
               ] AS what
        FROM range({EVENTS // 10}) events(i)
    """,
}

_SUMS = """
    sum(delivered) AS delivered, sum(failed) AS failed, sum(uncounted) AS uncounted,
    sum(poisoned) AS poisoned, sum(skipped) AS skipped, sum(retried) AS retried,
    sum(redriven) AS redriven, sum(confirmed) AS confirmed,
    sum(recurred) AS recurred, sum(dropped) AS dropped
"""
_DECIDED = """
    count(*) FILTER (what = 'redriven') AS redriven,
    count(*) FILTER (what = 'confirmed') AS confirmed,
    count(*) FILTER (what = 'recurred') AS recurred,
    count(*) FILTER (what = 'dropped') AS dropped
"""
_RATED = """
    (failed - uncounted) / nullif(delivered, 0) AS part,
    CASE WHEN part > 1 THEN 1.0::double ELSE part END AS rate,
    1.959964 * sqrt((rate * (1 - rate) + 0.960364720324 / delivered) / delivered)
        AS reach,
    rate + 1.920729440648 / delivered AS middle,
    1 + 3.841458881296 / delivered AS scale
"""
_COUNTED = (
    *("delivered", "failed", "poisoned", "retried"),
    *("redriven", "confirmed", "recurred", "dropped"),
)
_MEASURED = f"""
    {", ".join(f"{name}::bigint AS {name}" for name in _COUNTED)},
    rate AS failure_rate,
    CASE WHEN rate IS NOT NULL
         THEN greatest(least((middle - reach) / scale, rate), 0) END AS rate_low,
    CASE WHEN rate IS NOT NULL
         THEN least(greatest((middle + reach) / scale, rate), 1) END AS rate_high
"""
_GRAINS = """
    GROUPING SETS ((day, topic, consumer_group, hour), (day, topic, consumer_group),
                   (day, topic, hour), (day, topic))
"""

IN_DUCKDB = Template(f"""
CREATE OR REPLACE TEMP TABLE failed AS
SELECT day, hour("at") AS hour, topic, consumer_group, problem, count(*) AS failed,
       count(*) FILTER (is_first) AS poisoned,
       sum(greatest(attempts - 1, 0)) AS retried
FROM read_parquet('$lake/failures/*/run=1-1/*.parquet') GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE decided AS
SELECT day, hour("at") AS hour, topic, consumer_group, problem, {_DECIDED}
FROM read_parquet('$lake/decisions/*/run=1-1/*.parquet') GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE counted AS
SELECT day, hour("at") AS hour, topic, consumer_group,
       CASE source WHEN 'sdk' THEN 2 ELSE 1 END AS rank, sum(handled) AS handled,
       sum(failed) AS failed, sum(skipped) AS skipped, sum(retried) AS retried
FROM read_parquet('$lake/counters/*/run=1-1/*.parquet') GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE best AS
SELECT day, topic, consumer_group, max(rank) AS best FROM counted GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE timed AS
WITH entries AS (
    SELECT day, hour("at") AS hour, topic, consumer_group,
           CASE source WHEN 'sdk' THEN 2 ELSE 1 END AS rank,
           unnest(map_entries(duration_ms_hist)) AS entry
    FROM read_parquet('$lake/counters/*/run=1-1/*.parquet')
), hourly AS (
    SELECT day, hour, topic, consumer_group, rank, entry.key::int AS bucket,
           sum(entry.value) AS number
    FROM entries GROUP BY ALL
), rolled_up AS (
    SELECT day, topic, consumer_group, hour, bucket, sum(number) AS number
    FROM hourly JOIN best USING (day, topic, consumer_group) WHERE rank = best
    GROUP BY bucket, {_GRAINS}
), running AS (
    SELECT *, sum(number) OVER (
                  PARTITION BY day, topic, consumer_group, hour ORDER BY bucket
              ) AS seen,
           sum(number) OVER (PARTITION BY day, topic, consumer_group, hour) AS total
    FROM rolled_up
)
SELECT day, topic, consumer_group, hour,
       (2 ** (1 + min(bucket) FILTER (seen * 100 >= total * 50)))::bigint AS p50_ms,
       (2 ** (1 + min(bucket) FILTER (seen * 100 >= total * 95)))::bigint AS p95_ms,
       (2 ** (1 + min(bucket) FILTER (seen * 100 >= total * 99)))::bigint AS p99_ms
FROM running WHERE number > 0 GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE rates AS
WITH facts AS (
    SELECT day, hour, topic, consumer_group, rank, handled, failed, skipped, retried
    FROM counted
    UNION ALL BY NAME
    SELECT day, hour, topic, consumer_group, failed AS captured, poisoned FROM failed
    UNION ALL BY NAME
    SELECT day, hour, topic, consumer_group, redriven, confirmed, recurred, dropped
    FROM decided
), settled AS (
    SELECT day, hour, topic, consumer_group, coalesce(best, 0) AS best,
           CASE coalesce(best, 0) WHEN 2 THEN coalesce(handled + failed, 0)
                WHEN 1 THEN coalesce(handled, 0) END AS delivered,
           coalesce(CASE best WHEN 2 THEN failed ELSE captured END, 0) AS failed,
           CASE WHEN best IS NULL THEN coalesce(captured, 0) ELSE 0 END AS uncounted,
           coalesce(poisoned, 0) AS poisoned, coalesce(skipped, 0) AS skipped,
           coalesce(retried, 0) AS retried, coalesce(redriven, 0) AS redriven,
           coalesce(confirmed, 0) AS confirmed, coalesce(recurred, 0) AS recurred,
           coalesce(dropped, 0) AS dropped
    FROM facts LEFT JOIN best USING (day, topic, consumer_group)
    WHERE rank IS NULL OR rank = best
), rolled_up AS (
    SELECT day, topic, consumer_group, hour, max(best) AS best, {_SUMS}
    FROM settled GROUP BY {_GRAINS}
), rated AS (SELECT *, {_RATED} FROM rolled_up)
SELECT rated.day, rated.hour, rated.topic, rated.consumer_group,
       ['none', 'broker', 'sdk'][best + 1] AS source, uncounted::bigint AS uncounted,
       skipped::bigint AS skipped, {_MEASURED},
       p50_ms, p95_ms, p99_ms
FROM rated LEFT JOIN timed ON timed.day = rated.day AND timed.topic = rated.topic
    AND timed.consumer_group IS NOT DISTINCT FROM rated.consumer_group
    AND timed.hour IS NOT DISTINCT FROM rated.hour;

COPY rates TO '$output/rates.parquet';

COPY (
    WITH groups AS (
        SELECT day, topic, consumer_group, delivered FROM rates
        WHERE hour IS NULL AND consumer_group IS NOT NULL
    ), days AS (
        SELECT day, problem, topic, consumer_group,
               coalesce(sum(failed), 0) AS failed, 0 AS uncounted,
               coalesce(sum(poisoned), 0) AS poisoned,
               coalesce(sum(retried), 0) AS retried,
               coalesce(sum(redriven), 0) AS redriven,
               coalesce(sum(confirmed), 0) AS confirmed,
               coalesce(sum(recurred), 0) AS recurred,
               coalesce(sum(dropped), 0) AS dropped
        FROM (FROM failed UNION ALL BY NAME FROM decided) GROUP BY ALL
    ), placed AS (
        FROM days LEFT JOIN groups USING (day, topic, consumer_group)
    ), rated AS (SELECT *, {_RATED} FROM placed)
    SELECT day, problem, {_MEASURED} FROM rated
) TO '$output/problems.parquet';
""")


def generate(database: duckdb.DuckDBPyConnection, lake: Path) -> None:
    """Write a month of facts for the nightly report to the lake, as Parquet files."""
    for kind, query in _FACT_QUERIES.items():
        database.execute(
            f"COPY (SELECT * EXCLUDE (t, g) FROM ({query}))"
            f" TO '{lake / kind}' (FORMAT parquet, PARTITION_BY (day, run))"
        )


def differences(database: duckdb.DuckDBPyConnection, lake: Path, output: Path) -> int:
    """Count report rows that only one side has; last bits of floats may differ."""
    number = 0
    for kind in (LakeKind.RATES, LakeKind.PROBLEMS):
        theirs = f"SELECT * FROM '{output}/{kind}.parquet'"
        ours = f"FROM read_parquet('{lake}/{kind}/*/run=1-1/*.parquet')"
        names = [row[0] for row in database.execute(f"DESCRIBE {theirs}").fetchall()]
        columns = ", ".join(
            f"round({name}, 12)" if "rate" in name else f"{name}::text"
            for name in names
        )
        each = f"SELECT {columns} {ours}", f"SELECT {columns} FROM ({theirs})"
        for one, other in (each, each[::-1]):
            query = f"SELECT count(*) FROM ({one} EXCEPT ALL {other})"
            ((count,),) = database.execute(query).fetchall()
            number += int(count)
    return number


def main(folder: Path) -> None:
    lake, output = folder / "lake", folder / "output"
    for each in (lake, output):
        each.mkdir()
    database = duckdb.connect()
    database.execute(f"SET threads = {THREADS}; SET TimeZone = 'UTC'")
    generate(database, lake)
    report = job.Report(
        attempt=RunAttempt(run=1, epoch=1),
        window=FactWindow(first=FIRST, last=LAST, snapshot="0-0-0"),
        lake=str(lake),
    )
    theirs = IN_DUCKDB.substitute(lake=lake, output=output)
    with session.start("night") as spark:

        def ours() -> None:
            for kind in (LakeKind.RATES, LakeKind.PROBLEMS):
                shutil.rmtree(lake / kind, ignore_errors=True)
            job.measure(Lake(spark, report.lake), report)

        ratio = compare(
            f"{EVENTS:,} events",
            number=EVENTS,
            ours=ours,
            baseline=lambda: database.execute(theirs),
            named="DuckDB",
        )
    print(f"rows that differ: {differences(database, lake, output)}")
    print(f"ratio {ratio:.2f}: {1 / ratio:.1f} times as long as DuckDB")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="pw-bench-") as folder:
        main(Path(folder))
