"""Count facts by hour: few rows, from which all reports are computed.

Each kind of facts is read only once for this.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.transforms import handling_time_quantiles

COUNTS = ("handled", "failed", "skipped", "retried")
DECISIONS = ("redriven", "confirmed", "recurred", "dropped")


def failures_by_hour(failures: DataFrame) -> DataFrame:
    """Count failures by problem; `retried` are the attempts after each first one.

    A failure counts for all that it stands for, and its attempts are theirs together.
    """
    retries = F.greatest(F.col("attempts").cast("bigint") - F.col("times"), F.lit(0))
    return failures.groupBy(*_group_columns(), "problem").agg(
        F.sum("times").alias("failed"),
        F.count_if("is_first").alias("poisoned"),
        F.sum(retries).alias("retried"),
    )


def counters_by_hour(counters: DataFrame) -> DataFrame:
    """Sum consumers' and brokers' counts of deliveries by hour and bucket.

    The rows of an hour add up to its counts.
    """
    buckets = handling_time_quantiles.by_bucket(
        counters, "duration_ms_hist", once=COUNTS
    )
    sums = [F.sum(name).alias(name) for name in (*COUNTS, "durations")]
    return buckets.groupBy(*_group_columns(), "source", "bucket").agg(*sums)


def decisions_by_hour(decisions: DataFrame) -> DataFrame:
    """Count people's decisions and their outcomes by problem."""
    counts = [F.count_if(F.col("what") == what).alias(what) for what in DECISIONS]
    return decisions.groupBy(*_group_columns(), "problem").agg(*counts)


def _group_columns() -> list[Column]:
    """Return the columns that facts are counted by."""
    hour = F.hour("at").alias("hour")
    return [F.col("day"), hour, F.col("topic"), F.col("consumer_group")]
