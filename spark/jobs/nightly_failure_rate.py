"""The nightly report: facts from Postgres into the lake, and their measures back.

    python -m spark.jobs.nightly_failure_rate --run 12 --epoch 1 --lake var/lake
        --first 2026-11-01 --last 2026-11-28 --snapshot 00000003-0000001B-1

1. Read the facts of these UTC days in the exported snapshot, and write them to the
   lake.
2. Count them by hour, and compute rates of topics and of problems, and the outcomes of
   endpoints.
3. Write those to the lake, and to the staging tables of Postgres, for the caller to
   check and publish.
4. Delete from the lake what older attempts left.

The last line of stdout has the number of facts of each kind. A failure ends with status
1, and the last line of stderr gives the reason. The caller keeps stdin open: when it
closes, the job ends at once.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from spark import postgres_reading_and_writing, session
from spark.fact_sql_statements import FactWindow
from spark.lake_schemas import FACTS, FACTS_OF_ENDPOINTS, FACTS_OF_TOPICS, LakeKind
from spark.parquet_lake import Lake, RunAttempt, days
from spark.transforms import hourly_counts
from spark.transforms.daily_problem_counts import problems
from spark.transforms.endpoint_outcomes import outcomes
from spark.transforms.topic_failure_rates import rates

NAME = "nightly_failure_rate"
# The last line of a Python traceback, which Spark puts into the middle of its own.
_CAUSE = re.compile(r"[\w.]+(?:Error|Exception): (?!Traceback)")
# The start of py4j's first line, which names the failed call and not the reason.
_PY4J = "An error occurred while calling "
STAGED = {
    LakeKind.RATES: "reports_staged_rate",
    LakeKind.PROBLEMS: "reports_staged_problem",
    LakeKind.ENDPOINTS: "reports_staged_endpoint",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The requested report: its attempt, its days and snapshot, and the lake."""

    attempt: RunAttempt
    window: FactWindow
    lake: str

    @property
    def days(self) -> list[date]:
        return days(self.window.first, self.window.last)


def main(arguments: Sequence[str]) -> dict[str, int]:
    """Make the report that the arguments describe; return counts of facts by kind."""
    report = parse_arguments(arguments)
    with session.start(NAME) as spark:
        return make(spark, report)


def make(spark: SparkSession, report: Report) -> dict[str, int]:
    """Make one report; return how many facts of each kind it has read."""
    lake = Lake(spark, report.lake)
    rows = {kind.value: _extract(spark, lake, kind, report) for kind in FACTS}
    measure(lake, report)
    measure_endpoints(lake, report)
    _stage(lake, report)
    _delete_superseded(lake, report)
    return rows


def parse_arguments(arguments: Sequence[str]) -> Report:
    """Parse the arguments of the job into a report."""
    parser = argparse.ArgumentParser(prog=NAME, allow_abbrev=False)
    parser.add_argument("--run", type=int, required=True)
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--first", type=date.fromisoformat, required=True)
    parser.add_argument("--last", type=date.fromisoformat, required=True)
    parser.add_argument("--snapshot", required=True)
    parser.add_argument("--lake", required=True, help="a folder, or a Hadoop URL")
    options = parser.parse_args(arguments)
    return Report(
        attempt=RunAttempt(run=options.run, epoch=options.epoch),
        window=FactWindow(
            first=options.first, last=options.last, snapshot=options.snapshot
        ),
        lake=options.lake,
    )


def _extract(spark: SparkSession, lake: Lake, kind: LakeKind, report: Report) -> int:
    """Copy one kind of facts into the lake, and count them on the way."""
    count = Observation()
    facts = postgres_reading_and_writing.read(spark, kind, report.window)
    observed_facts = facts.observe(count, F.count(F.lit(1)).alias("rows"))
    lake.write(kind, observed_facts, report.attempt)
    return int(count.get["rows"])


def measure(lake: Lake, report: Report) -> None:
    """Compute failure rates and problems from facts in the lake; store them there."""
    failures, counters, decisions = (
        _read_attempt(lake, kind, report) for kind in FACTS_OF_TOPICS
    )
    hourly_failures = hourly_counts.failures_by_hour(failures).persist()
    hourly_decisions = hourly_counts.decisions_by_hour(decisions).persist()
    hourly_counters = hourly_counts.counters_by_hour(counters)
    by_topic = rates(hourly_failures, hourly_counters, hourly_decisions)
    lake.write(LakeKind.RATES, by_topic, report.attempt)
    stored_rates = _read_attempt(lake, LakeKind.RATES, report)
    by_problem = problems(hourly_failures, hourly_decisions, stored_rates)
    lake.write(LakeKind.PROBLEMS, by_problem, report.attempt)
    hourly_failures.unpersist()
    hourly_decisions.unpersist()


def measure_endpoints(lake: Lake, report: Report) -> None:
    """Compute the outcomes of endpoints from facts in the lake; store them there."""
    calls, deliveries, backlogs = (
        _read_attempt(lake, kind, report) for kind in FACTS_OF_ENDPOINTS
    )
    by_endpoint = outcomes(calls, deliveries, backlogs)
    lake.write(LakeKind.ENDPOINTS, by_endpoint, report.attempt)


def _stage(lake: Lake, report: Report) -> None:
    """Copy the measures from the lake into the staging tables of Postgres."""
    tables = {
        table: _with_attempt(
            _read_attempt(lake, kind, report), report.attempt
        ).toArrow()
        for kind, table in STAGED.items()
    }
    postgres_reading_and_writing.append(tables)


def _with_attempt(measures: DataFrame, attempt: RunAttempt) -> DataFrame:
    """Put the run and its epoch before the columns of the report's measures."""
    return measures.select(
        F.lit(attempt.run).cast("bigint").alias("run_id"),
        F.lit(attempt.epoch).alias("epoch"),
        "*",
    )


def _delete_superseded(lake: Lake, report: Report) -> None:
    """Delete from the lake, by day, all attempts but the published one and this one."""
    published = postgres_reading_and_writing.published_attempts(
        report.window.first, report.window.last
    )
    lake.delete_except(
        {
            day: {report.attempt, published.get(day, report.attempt)}
            for day in report.days
        }
    )


def _read_attempt(lake: Lake, kind: LakeKind, report: Report) -> DataFrame:
    """Read from the lake what this attempt wrote of a kind for its days."""
    return lake.read(kind, report.attempt, report.days)


def _end_with(stream: int) -> None:
    """Wait until standard input is closed, and end this job silently."""
    while os.read(stream, 4096):
        pass
    os._exit(1)


def reason(error: Exception) -> str:
    """Extract an error's line with the reason; a worker's failure has many lines."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith(_PY4J):
        lines = [line.removeprefix(": ") for line in lines[1:]]
    causes = [line for line in lines if _CAUSE.match(line)]
    return (causes[-1:] or lines[:1] or [type(error).__name__])[0]


def _run() -> None:
    """Run the report's job and print its result as one line."""
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    threading.Thread(target=_end_with, args=[sys.stdin.fileno()], daemon=True).start()
    try:
        rows = main(sys.argv[1:])
    except Exception as error:  # noqa: BLE001 - printed in full, and in the status
        traceback.print_exc()
        sys.exit(f"{NAME}: {reason(error)}")
    with answer:
        answer.write(json.dumps({"rows": rows}) + "\n")


if __name__ == "__main__":
    _run()
