"""The lake: folders by kind, day and attempt, and no file ever overwritten."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark.lake_schemas import LakeKind, schema
from spark.parquet_lake import Lake, RunAttempt, days
from tests.spark.fact_rows import NOON, facts

pytestmark = pytest.mark.spark

FIRST, SECOND = RunAttempt(run=1, epoch=1), RunAttempt(run=2, epoch=1)
TODAY = NOON.date()
YESTERDAY, BEFORE = TODAY - timedelta(days=1), TODAY - timedelta(days=2)


def test_reads_back_rows_of_every_kind(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, str(tmp_path))
    counters = facts(
        spark,
        LakeKind.COUNTERS,
        [
            {"topic": "a/b=c%20\u202e", "duration_ms_hist": {"3": 7}},
            {"at": NOON - timedelta(days=2), "consumer_group": ""},
        ],
    )

    lake.write(LakeKind.COUNTERS, counters, FIRST)

    rows = lake.read(LakeKind.COUNTERS, FIRST, days(BEFORE, TODAY))
    assert sorted(rows.collect()) == sorted(counters.collect())
    assert rows.schema == schema(LakeKind.COUNTERS)
    assert sorted(folder.name for folder in (tmp_path / "counters").glob("day=*")) == [
        f"day={BEFORE}",
        f"day={TODAY}",
    ]
    assert (tmp_path / f"counters/day={TODAY}/run=1-1").is_dir()


@pytest.mark.parametrize("kind", list(LakeKind))
def test_reads_days_without_rows_as_no_rows(
    spark: SparkSession, tmp_path: Path, kind: LakeKind
) -> None:
    rows = Lake(spark, str(tmp_path)).read(kind, FIRST, [TODAY])

    assert rows.schema == schema(kind)
    assert rows.collect() == []


def test_keeps_the_attempts_of_a_day_apart(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, f"{tmp_path}/")
    for attempt, topic in ((FIRST, "old"), (SECOND, "new")):
        decisions = facts(spark, LakeKind.DECISIONS, [{"topic": topic}])
        lake.write(LakeKind.DECISIONS, decisions, attempt)

    topics = {
        attempt.run: [
            row.topic
            for row in lake.read(LakeKind.DECISIONS, attempt, [TODAY]).collect()
        ]
        for attempt in (FIRST, SECOND)
    }

    assert topics == {1: ["old"], 2: ["new"]}


def test_deletes_all_attempts_of_the_named_days_but_the_kept_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, str(tmp_path))
    third = RunAttempt(run=2, epoch=10)
    moments = [NOON, NOON - timedelta(days=1)]
    decisions = facts(spark, LakeKind.DECISIONS, [{"at": moment} for moment in moments])
    for attempt in (FIRST, SECOND, third):
        lake.write(LakeKind.DECISIONS, decisions, attempt)

    lake.delete_except({TODAY: {FIRST, third}, BEFORE: {third}})

    attempts = {
        day: sorted(
            folder.name for folder in (tmp_path / f"decisions/day={day}").iterdir()
        )
        for day in (TODAY, YESTERDAY)
    }
    assert attempts == {
        TODAY: ["run=1-1", "run=2-10"],
        YESTERDAY: ["run=1-1", "run=2-1", "run=2-10"],
    }


def test_writes_times_that_every_parquet_reader_understands(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path.as_uri())

    lake.write(LakeKind.DECISIONS, facts(spark, LakeKind.DECISIONS, [{}]), FIRST)

    (file,) = (tmp_path / "decisions").rglob("*.parquet")
    (row,) = pq.ParquetFile(file).read().to_pylist()
    assert (row["at"], row["what"]) == (NOON, "redriven")
