"""The nightly report: facts from Postgres into the lake, and their measures back.

    python -m spark.jobs.nightly_failure_rate --run 12 --epoch 1 --lake var/lake
        --first 2026-11-01 --last 2026-11-28 --snapshot 00000003-0000001B-1

1. The facts of these UTC days are read in the exported snapshot, and written to the
   lake. 2. They are counted by hour, and made into rates of topics and of problems.
3. Those are written to the lake, and to the staged tables of Postgres for the caller
   to check and to publish. 4. What older attempts left in the lake is forgotten.

The last line of stdout tells how many facts there were; whatever fails ends with status
1, and with what is the matter in the last line of stderr. The caller keeps stdin open:
when that ends, so does this, at once.
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

from spark import postgres, session
from spark.facts import Window
from spark.lake import Attempt, Lake, days
from spark.schemas import FACTS, Kind
from spark.transforms import partials
from spark.transforms.problems import problems
from spark.transforms.rates import rates

NAME = "nightly_failure_rate"
# The last line of a Python traceback, which Spark passes on in the midst of its own.
_CAUSE = re.compile(r"[\w.]+(?:Error|Exception): (?!Traceback)")
# What py4j says before the line that matters: which of its calls failed.
_PY4J = "An error occurred while calling "
STAGED = {
    Kind.RATES: "reports_staged_rate",
    Kind.PROBLEMS: "reports_staged_problem",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What is asked for: which attempt makes it, of what, and in which lake."""

    attempt: Attempt
    window: Window
    lake: str

    @property
    def days(self) -> list[date]:
        return days(self.window.first, self.window.last)


def main(arguments: Sequence[str]) -> dict[str, int]:
    report = parsed(arguments)
    with session.start(NAME) as spark:
        return make(spark, report)


def make(spark: SparkSession, report: Report) -> dict[str, int]:
    """Make one report; tell how many facts of each kind it is made of."""
    lake = Lake(spark, report.lake)
    rows = {kind.value: _extract(spark, lake, kind, report) for kind in FACTS}
    measure(lake, report)
    _stage(lake, report)
    _forget(lake, report)
    return rows


def parsed(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog=NAME, allow_abbrev=False)
    parser.add_argument("--run", type=int, required=True)
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--first", type=date.fromisoformat, required=True)
    parser.add_argument("--last", type=date.fromisoformat, required=True)
    parser.add_argument("--snapshot", required=True)
    parser.add_argument("--lake", required=True, help="a folder, or a Hadoop URL")
    told = parser.parse_args(arguments)
    return Report(
        attempt=Attempt(run=told.run, epoch=told.epoch),
        window=Window(first=told.first, last=told.last, snapshot=told.snapshot),
        lake=told.lake,
    )


def _extract(spark: SparkSession, lake: Lake, kind: Kind, report: Report) -> int:
    """Bring one kind of facts into the lake, and count them on the way."""
    count = Observation()
    facts = postgres.read(spark, kind, report.window)
    counted = facts.observe(count, F.count(F.lit(1)).alias("rows"))
    lake.write(kind, counted, report.attempt)
    return int(count.get["rows"])


def measure(lake: Lake, report: Report) -> None:
    """Make rates and problems out of the facts in the lake, reading each kind once."""
    failures, counters, decisions = (_read(lake, kind, report) for kind in FACTS)
    failed = partials.failures_by_hour(failures).persist()
    decided = partials.decisions_by_hour(decisions).persist()
    counted = partials.counters_by_hour(counters)
    lake.write(Kind.RATES, rates(failed, counted, decided), report.attempt)
    rated = _read(lake, Kind.RATES, report)
    lake.write(Kind.PROBLEMS, problems(failed, decided, rated), report.attempt)
    failed.unpersist()
    decided.unpersist()


def _stage(lake: Lake, report: Report) -> None:
    tables = {
        table: _marked(_read(lake, kind, report), report.attempt).toArrow()
        for kind, table in STAGED.items()
    }
    postgres.append(tables)


def _marked(measures: DataFrame, attempt: Attempt) -> DataFrame:
    return measures.select(
        F.lit(attempt.run).cast("bigint").alias("run_id"),
        F.lit(attempt.epoch).alias("epoch"),
        "*",
    )


def _forget(lake: Lake, report: Report) -> None:
    """Leave of each day what is published and what is about to be."""
    published = postgres.published(report.window.first, report.window.last)
    lake.forget(
        {
            day: {report.attempt, published.get(day, report.attempt)}
            for day in report.days
        }
    )


def _read(lake: Lake, kind: Kind, report: Report) -> DataFrame:
    return lake.read(kind, report.attempt, report.days)


def _end_with(stream: int) -> None:
    """Wait until nobody holds the other end, and end this process without a word."""
    while os.read(stream, 4096):
        pass
    os._exit(1)


def reason(error: Exception) -> str:
    """Say in a line what is the matter; in a worker's failure it is among many."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith(_PY4J):
        lines = [line.removeprefix(": ") for line in lines[1:]]
    causes = [line for line in lines if _CAUSE.match(line)]
    return (causes[-1:] or lines[:1] or [type(error).__name__])[0]


def _run() -> None:
    """Answer on stdout with one line, whatever Java prints there."""
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    threading.Thread(target=_end_with, args=[sys.stdin.fileno()], daemon=True).start()
    try:
        rows = main(sys.argv[1:])
    except Exception as error:  # noqa: BLE001 - told in full, and by the status
        traceback.print_exc()
        sys.exit(f"{NAME}: {reason(error)}")
    with answer:
        answer.write(json.dumps({"rows": rows}) + "\n")


if __name__ == "__main__":
    _run()
