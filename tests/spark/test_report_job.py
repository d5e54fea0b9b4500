"""The job: facts from a real Postgres, a lake, staging tables, and its stdin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from pyspark.sql import SparkSession

from apps.reports.models import Day, Run
from spark import fact_sql_statements as facts_of_postgres
from spark import java_discovery, postgres_reading_and_writing
from spark.fact_sql_statements import FactWindow
from spark.jobs import nightly_failure_rate as job
from spark.lake_schemas import LakeKind
from spark.parquet_lake import Lake, RunAttempt
from tests.ended_deliveries import calls, delivery
from tests.failure_report_builders import capture, count_up, counter, failure
from tests.integration.redelivery.endpoint_and_delivery_builders import endpoint
from tests.spark.fact_rows import facts
from tests.spark.pytest_adbc_jdbc_parametrization import Export
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

NO_TOPICS = ("failures", "counters", "decisions")
NO_ENDPOINTS = {"calls": 0, "deliveries": 0, "backlogs": 0}
HOSTILE = "a/b c% '\"\\`$1 \u202e\u2028 e\u0301"


def report(lake: Path, snapshot: str, day: date, *, epoch: int = 1) -> job.Report:
    return job.Report(
        attempt=RunAttempt(run=12, epoch=epoch),
        window=FactWindow(first=day - timedelta(days=1), last=day, snapshot=snapshot),
        lake=str(lake),
    )


def tell(now: datetime) -> None:
    """Capture two poisons and a counter of a topic, and a failure without a counter."""
    capture(now, *(failure(now, topic=HOSTILE, attempts=3) for _ in range(2)))
    capture(now, failure(now, topic="payments"))
    count_up(now, counter(topic=HOSTILE, minute=now.isoformat()))


def staged(database_url: str, table: str) -> list[dict[str, Any]]:
    with psycopg.connect(database_url, row_factory=dict_row) as session:
        return session.execute(f"SELECT * FROM {table}").fetchall()


def test_stages_measures_of_captured_failures(
    spark: SparkSession,
    database_url: str,
    export: Export,
    tmp_path: Path,
    now: datetime,
) -> None:
    tell(now)

    rows = job.make(spark, report(tmp_path, export(), now.date()))

    assert rows == {"failures": 3, "counters": 1, "decisions": 0} | NO_ENDPOINTS
    rates = staged(database_url, "reports_staged_rate")
    assert len(rates) == 8
    (hour,) = (
        rate
        for rate in rates
        if (rate["topic"], rate["hour"], rate["consumer_group"])
        == (HOSTILE, 12, "billing")
    )
    assert (hour["run_id"], hour["epoch"], hour["day"]) == (12, 1, now.date())
    assert (hour["source"], hour["delivered"], hour["failed"]) == ("sdk", 12, 2)
    assert (hour["poisoned"], hour["failure_rate"]) == (2, 2 / 12)
    assert (hour["p50_ms"], hour["p99_ms"]) == (16, 64)
    problems = staged(database_url, "reports_staged_problem")
    measures = sorted((p["failed"], p["retried"], p["delivered"]) for p in problems)
    assert measures == [(1, 0, None), (2, 4, 12)]


def test_a_second_attempt_makes_the_same_report(
    spark: SparkSession,
    database_url: str,
    export: Export,
    tmp_path: Path,
    now: datetime,
) -> None:
    tell(now)

    for epoch in (1, 2):
        job.make(spark, report(tmp_path, export(), now.date(), epoch=epoch))

    for table in ("reports_staged_rate", "reports_staged_problem"):
        rows_by_epoch: dict[int, list[str]] = {1: [], 2: []}
        for row in staged(database_url, table):
            rows_by_epoch[row.pop("epoch")].append(repr(row))
        assert rows_by_epoch[1]
        assert sorted(rows_by_epoch[1]) == sorted(rows_by_epoch[2])


def test_a_second_attempt_stages_the_same_endpoints(
    spark: SparkSession,
    database_url: str,
    export: Export,
    tmp_path: Path,
    now: datetime,
) -> None:
    quote = endpoint("quote")
    calls(quote, now, succeeded_at_first=4, failed=2)
    for took in range(1, 4):
        delivery(quote, "delivered", now, took=timedelta(seconds=took))
    delivery(quote, "waiting", now - timedelta(days=1))

    read = [
        job.make(spark, report(tmp_path, export(), now.date(), epoch=epoch))
        for epoch in (1, 2)
    ]

    facts_read = {"calls": 1, "deliveries": 3, "backlogs": 2}
    assert read == [dict.fromkeys(NO_TOPICS, 0) | facts_read] * 2
    rows = staged(database_url, "reports_staged_endpoint")
    waiting, today, *again = sorted(rows, key=lambda row: (row["epoch"], row["day"]))
    assert [row | {"epoch": 1} for row in again] == [waiting, today]
    assert (waiting["calls"], waiting["waiting"], waiting["p50_ms"]) == (0, 1, None)
    assert (today["calls"], today["succeeded_at_first"], today["after_1"]) == (6, 4, 3)
    assert (today["p50_ms"], today["p95_ms"], today["waiting"]) == (2000, 3000, 1)


def test_keeps_only_the_published_and_the_current_attempt_in_the_lake(
    spark: SparkSession,
    database_url: str,
    export: Export,
    tmp_path: Path,
    now: datetime,
) -> None:
    publish(now.date(), run=11, now=now)
    lake, failures = (
        Lake(spark, str(tmp_path)),
        facts(spark, LakeKind.FAILURES, [{"at": now}]),
    )
    for run in (10, 11):
        lake.write(LakeKind.FAILURES, failures, RunAttempt(run=run, epoch=1))
    capture(now, failure(now))

    job.make(spark, report(tmp_path, export(), now.date()))

    folders = (tmp_path / "failures" / f"day={now.date()}").iterdir()
    assert sorted(folder.name for folder in folders) == ["run=11-1", "run=12-1"]


def publish(day: date, *, run: int, now: datetime) -> None:
    done = Run.objects.create(
        id=run,
        epoch=1,
        state="done",
        asked_by="user:anna",
        snapshot="1:1:",
        **dict.fromkeys(("first_day", "last_day"), day),
        **dict.fromkeys(("asked_at", "started_at", "finished_at", "as_of"), now),
    )
    Day.objects.create(day=day, run=done, rows_in=4, late_rows=0)


def test_stages_nothing_for_days_without_events(
    spark: SparkSession,
    database_url: str,
    export: Export,
    tmp_path: Path,
    now: datetime,
) -> None:
    rows = job.make(spark, report(tmp_path, export(), now.date()))

    assert rows == {"failures": 0, "counters": 0, "decisions": 0} | NO_ENDPOINTS
    assert staged(database_url, "reports_staged_rate") == []
    assert staged(database_url, "reports_staged_endpoint") == []
    assert (
        Lake(spark, str(tmp_path))
        .read(LakeKind.RATES, RunAttempt(run=12, epoch=1), [now.date()])
        .collect()
        == []
    )


@contextmanager
def started(lake: Path, snapshot: str, day: date) -> Iterator[subprocess.Popen[str]]:
    arguments = (
        *("--run", "12", "--epoch", "1", "--first", str(day), "--last", str(day)),
        *("--snapshot", snapshot, "--lake", str(lake)),
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "spark.jobs.nightly_failure_rate", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        yield process
        process.kill()


def test_the_last_line_of_stderr_gives_the_reason_of_a_failure(
    tmp_path: Path, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")

    with started(tmp_path, "0-0-0", now.date()) as process:
        assert process.stderr is not None
        complained = process.stderr.read()
        status = process.wait()

    assert status == 1
    assert complained.splitlines()[-1] == (
        "nightly_failure_rate: JAVA_HOME is /nowhere, but no bin/java works there: "
        + java_discovery.REMEDY
    )


def test_extracts_a_workers_error_from_sparks_message(
    spark: SparkSession, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        facts_of_postgres, "statements", lambda *_, **__: ["SELECT 1/0"]
    )
    window = FactWindow(first=date.min, last=date.min, snapshot=export())

    with pytest.raises(Exception, match="Traceback") as raised:
        postgres_reading_and_writing.read(spark, LakeKind.FAILURES, window).collect()

    assert job.reason(raised.value).startswith("adbc_driver_manager.")
    assert job.reason(raised.value).endswith("ERROR:  division by zero")


def test_job_and_its_processes_end_when_the_caller_is_gone(
    export: Export, tmp_path: Path, now: datetime
) -> None:
    with started(tmp_path, export(), now.date()) as process:
        assert process.stdin is not None
        wait_until(lambda: "java" in commands(process.pid))

        process.stdin.close()

        assert process.wait(timeout=60) == 1
        wait_until(lambda: not commands(process.pid))


def commands(group: int) -> set[str]:
    """List the programs that run in a process group."""
    listed = subprocess.run(
        ["ps", "-e", "-o", "pgid=,stat=,comm="],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = (line.split(maxsplit=2) for line in listed.stdout.splitlines())
    return {name for pgid, stat, name in rows if int(pgid) == group and stat[0] != "Z"}
