"""Failure rates of topics: by hour and by day, by consumer group and over all.

Each topic, consumer group and day counts deliveries by its best source: its consumers,
or else its broker, or else none. The counts of its other source are dropped. Failures
without a count of deliveries are `uncounted`, and no part of the rate.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.lake_schemas import MEASURES
from spark.transforms import handling_time_quantiles, wilson_intervals
from spark.transforms.hourly_counts import DECISIONS

GROUP = ("day", "topic", "consumer_group")
# The better source has the higher rank.
SOURCES = ("none", "broker", "sdk")
NONE, BROKER, SDK = range(len(SOURCES))

SUMS = ("failed", "uncounted", "poisoned", "skipped", "retried", *DECISIONS)
GRAINS = [
    ["day", "topic", "consumer_group", "hour"],
    ["day", "topic", "consumer_group"],
    ["day", "topic", "hour"],
    ["day", "topic"],
]


def rates(failures: DataFrame, counters: DataFrame, decisions: DataFrame) -> DataFrame:
    """Compute the failure rates of topics from facts that are counted by hour.

    `hour` is null in the rows of a whole day, `consumer_group` in those over all
    groups.
    """
    facts = _union(failures, counters, decisions)
    return _to_rates(_roll_up(_to_counts(_keep_best_source(facts))))


def _union(failures: DataFrame, counters: DataFrame, decisions: DataFrame) -> DataFrame:
    """Join all facts to one table, with the rank of the source that counted."""
    captured = failures.withColumnRenamed("failed", "captured").drop("retried")
    rank = F.when(F.col("source") == "sdk", SDK).otherwise(BROKER)
    ranked = counters.withColumn("rank", rank).drop("source")
    facts = ranked.unionByName(captured.drop("problem"), allowMissingColumns=True)
    facts = facts.unionByName(decisions.drop("problem"), allowMissingColumns=True)
    # A missing bucket is not bucket 0.
    return facts.fillna(0, [name for name in facts.columns if name != "bucket"])


def _keep_best_source(facts: DataFrame) -> DataFrame:
    """Drop counts that are not of the best source of their topic, group and day.

    Facts without a source stay.
    """
    best = F.max("rank").over(Window.partitionBy(*GROUP))
    has_no_source = F.col("rank") == NONE
    is_of_best_source = F.col("rank") == F.col("best")
    ranked = facts.withColumn("best", best)
    return ranked.where(has_no_source | is_of_best_source)


def _to_counts(facts: DataFrame) -> DataFrame:
    """Turn each fact into its counts of delivered and of failed messages."""
    by_sdk, by_broker = F.col("best") == SDK, F.col("best") == BROKER
    by_none = F.col("best") == NONE
    delivered = F.when(by_sdk, F.col("handled") + F.col("failed"))
    failed = F.when(by_sdk, F.col("failed")).otherwise(F.col("captured"))
    return facts.select(
        *GROUP,
        "hour",
        "best",
        delivered.when(by_broker, F.col("handled")).alias("delivered"),
        failed.alias("failed"),
        F.when(by_none, F.col("captured")).otherwise(0).alias("uncounted"),
        "poisoned",
        "skipped",
        "retried",
        *DECISIONS,
        "bucket",
        "durations",
    )


def _roll_up(facts: DataFrame) -> DataFrame:
    """Sum counts by each grain, and compute quantiles of handling times."""
    grains = [[*grain, "bucket"] for grain in GRAINS]
    sums = [
        F.max("best").alias("best"),
        # Null, not zero, if no source counted deliveries.
        *[F.sum(name).alias(name) for name in ("delivered", *SUMS)],
    ]
    in_bucket = F.sum("durations").alias("durations")
    buckets = facts.groupingSets(grains, *GROUP, "hour", "bucket").agg(*sums, in_bucket)
    ranked = handling_time_quantiles.with_ranks(buckets, *GROUP, "hour")
    return ranked.groupBy(*GROUP, "hour").agg(
        *sums, *handling_time_quantiles.quantiles()
    )


def _to_rates(sums: DataFrame) -> DataFrame:
    """Turn sums into failure rates with intervals, and name the source."""
    source = F.get(F.array(*[F.lit(name) for name in SOURCES]), F.col("best"))
    failures = F.col("failed") - F.col("uncounted")
    rated = wilson_intervals.with_rate(sums, failed=failures)
    return rated.select(
        "day",
        F.col("hour").cast("smallint").alias("hour"),
        "topic",
        "consumer_group",
        source.alias("source"),
        "uncounted",
        "skipped",
        *MEASURES,
        *handling_time_quantiles.PERCENTS,
    )
