"""Problems by day: their failures, and the decisions about them."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.lake_schemas import MEASURES
from spark.transforms import wilson_intervals
from spark.transforms.hourly_counts import DECISIONS

SUMS = ("failed", "poisoned", "retried", *DECISIONS)


def problems(failures: DataFrame, decisions: DataFrame, rates: DataFrame) -> DataFrame:
    """Compute problems by day from facts by hour, and from the rates of their groups.

    A problem's rate is its share of failures in all messages that were delivered to its
    consumer group on that day.
    """
    delivered = _delivered_by_group_and_day(rates)
    days = _by_day(failures, decisions)
    joined = days.join(delivered, on=["day", "topic", "consumer_group"], how="left")
    rated = wilson_intervals.with_rate(joined, failed=F.col("failed"))
    return rated.select("day", "problem", *MEASURES)


def _by_day(failures: DataFrame, decisions: DataFrame) -> DataFrame:
    """Sum each problem's failures and decisions by day, with its topic and group.

    That is where it failed on that day, or else where it was decided on.
    """
    place = F.struct("topic", "consumer_group")
    failed = failures.withColumn("failed_at", place)
    decided = decisions.withColumn("decided_at", place)
    facts = failed.unionByName(decided, allowMissingColumns=True)
    days = facts.groupBy("day", "problem").agg(
        F.coalesce(F.min("failed_at"), F.min("decided_at")).alias("place"),
        *[F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in SUMS],
    )
    return days.select("day", "problem", "place.*", *SUMS)


def _delivered_by_group_and_day(rates: DataFrame) -> DataFrame:
    """Select each consumer group's deliveries by day from the failure rates."""
    is_of_a_day = F.col("hour").isNull()
    is_of_a_group = F.col("consumer_group").isNotNull()
    by_group_and_day = rates.where(is_of_a_day & is_of_a_group)
    return by_group_and_day.select("day", "topic", "consumer_group", "delivered")
