"""Facts, counted by hour: few rows, and all that the reports are made of.

Each kind of facts is read once for this, however many reports are made.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.transforms import durations

COUNTS = ("handled", "failed", "skipped", "retried")
DECISIONS = ("redriven", "confirmed", "recurred", "dropped")


def failures_by_hour(failures: DataFrame) -> DataFrame:
    """Count failures by problem; `retried` are the attempts after each first one."""
    retries = F.greatest(F.col("attempts").cast("bigint") - 1, F.lit(0))
    return failures.groupBy(*_place(), "problem").agg(
        F.count(F.lit(1)).alias("failed"),
        F.count_if("is_first").alias("poisoned"),
        F.sum(retries).alias("retried"),
    )


def counters_by_hour(counters: DataFrame) -> DataFrame:
    """Add up what consumers and brokers counted, each apart, in a row for each bucket.

    All rows of an hour together are what was counted in it.
    """
    spread = durations.by_bucket(counters, "duration_ms_hist", once=COUNTS)
    sums = [F.sum(name).alias(name) for name in (*COUNTS, "durations")]
    return spread.groupBy(*_place(), "source", "bucket").agg(*sums)


def decisions_by_hour(decisions: DataFrame) -> DataFrame:
    """Count by problem what people decided, and what came of it."""
    counts = [F.count_if(F.col("what") == what).alias(what) for what in DECISIONS]
    return decisions.groupBy(*_place(), "problem").agg(*counts)


def _place() -> list[Column]:
    hour = F.hour("at").alias("hour")
    return [F.col("day"), hour, F.col("topic"), F.col("consumer_group")]
