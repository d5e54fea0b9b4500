"""Failure rates of topics: by hour and by day, by consumer group and over all.

What was delivered is known from one source for each topic, consumer group and day: its
consumers, or else its broker, or else nobody. What another source told is left out, and
failures where nobody counted deliveries are no part of the rate: `uncounted`.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.schemas import MEASURES
from spark.transforms import durations, intervals
from spark.transforms.partials import DECISIONS

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
    """Make the rates out of facts that are counted by hour.

    `hour` is null in the rows of a whole day, `consumer_group` in those over all.
    """
    facts = _together(failures, counters, decisions)
    return _measured(_rolled_up(_settled(_of_the_best_source(facts))))


def _together(
    failures: DataFrame, counters: DataFrame, decisions: DataFrame
) -> DataFrame:
    """Put all facts into one table, with a rank for those that a source told."""
    captured = failures.withColumnRenamed("failed", "captured").drop("retried")
    rank = F.when(F.col("source") == "sdk", SDK).otherwise(BROKER)
    counted = counters.withColumn("rank", rank).drop("source")
    facts = counted.unionByName(captured.drop("problem"), allowMissingColumns=True)
    facts = facts.unionByName(decisions.drop("problem"), allowMissingColumns=True)
    # A bucket that is none is not the first one.
    return facts.fillna(0, [name for name in facts.columns if name != "bucket"])


def _of_the_best_source(facts: DataFrame) -> DataFrame:
    best = F.max("rank").over(Window.partitionBy(*GROUP))
    is_told_by_nobody = F.col("rank") == NONE
    is_told_by_the_best = F.col("rank") == F.col("best")
    ranked = facts.withColumn("best", best)
    return ranked.where(is_told_by_nobody | is_told_by_the_best)


def _settled(facts: DataFrame) -> DataFrame:
    """Say of each fact how many it is of the delivered and of the failed."""
    by_sdk, by_broker = F.col("best") == SDK, F.col("best") == BROKER
    by_nobody = F.col("best") == NONE
    delivered = F.when(by_sdk, F.col("handled") + F.col("failed"))
    failed = F.when(by_sdk, F.col("failed")).otherwise(F.col("captured"))
    return facts.select(
        *GROUP,
        "hour",
        "best",
        delivered.when(by_broker, F.col("handled")).alias("delivered"),
        failed.alias("failed"),
        F.when(by_nobody, F.col("captured")).otherwise(0).alias("uncounted"),
        "poisoned",
        "skipped",
        "retried",
        *DECISIONS,
        "bucket",
        "durations",
    )


def _rolled_up(facts: DataFrame) -> DataFrame:
    """Add up by all grains, and read the quantiles off the buckets of each."""
    grains = [[*grain, "bucket"] for grain in GRAINS]
    sums = [
        F.max("best").alias("best"),
        # Null where nobody counted: that is not zero.
        *[F.sum(name).alias(name) for name in ("delivered", *SUMS)],
    ]
    lasted = F.sum("durations").alias("durations")
    buckets = facts.groupingSets(grains, *GROUP, "hour", "bucket").agg(*sums, lasted)
    ranked = durations.with_ranks(buckets, *GROUP, "hour")
    return ranked.groupBy(*GROUP, "hour").agg(*sums, *durations.quantiles())


def _measured(sums: DataFrame) -> DataFrame:
    source = F.get(F.array(*[F.lit(name) for name in SOURCES]), F.col("best"))
    counted = F.col("failed") - F.col("uncounted")
    rated = intervals.with_rate(sums, failed=counted)
    return rated.select(
        "day",
        F.col("hour").cast("smallint").alias("hour"),
        "topic",
        "consumer_group",
        source.alias("source"),
        "uncounted",
        "skipped",
        *MEASURES,
        *durations.PERCENTS,
    )
