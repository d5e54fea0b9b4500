"""How the calls and deliveries of endpoints ended, by day.

A success at the first try may leave no delivery: it is counted from the calls. All
other ends, and the times until success, are those of deliveries, on the day on which
each ended.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark.lake_schemas import ENDPOINT_COUNTS, ENDPOINT_TIMES

BY = ("day", "topic", "endpoint")
# How many retries a success took, from and to; null: and more.
RETRIES = {
    "after_1": (1, 1),
    "after_2": (2, 2),
    "after_3": (3, 3),
    "after_4_to_10": (4, 10),
    "after_more": (11, None),
}
ENDS = ("given_up", "dropped", "forwarded")
PERCENTS = {"p50_ms": 50, "p95_ms": 95}


def outcomes(calls: DataFrame, deliveries: DataFrame, backlogs: DataFrame) -> DataFrame:
    """Compute an endpoint's outcomes of each day with a call, an end or a backlog."""
    parts = [
        _of_calls(calls),
        _of_deliveries(deliveries),
        _times(deliveries),
        backlogs.select(*BY, "waiting"),
    ]
    union = reduce(_union, parts)
    sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ENDPOINT_COUNTS]
    times = [F.max(name).alias(name) for name in ENDPOINT_TIMES]
    return union.groupBy(*BY).agg(*sums, *times)


def _union(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.unionByName(other, allowMissingColumns=True)


def _of_calls(calls: DataFrame) -> DataFrame:
    """Count endpoints' calls, and successes at the first of them."""
    number = F.col("succeeded_at_first") + F.col("succeeded_later") + F.col("failed")
    return calls.select(*BY, number.alias("calls"), "succeeded_at_first")


def _of_deliveries(deliveries: DataFrame) -> DataFrame:
    """Count deliveries by their end, and successes by the retries before."""
    state, retries = F.col("state"), F.col("attempts") - 1
    has_succeeded = state == "delivered"
    after = [
        F.count_if(has_succeeded & _between(retries, low, high)).alias(name)
        for name, (low, high) in RETRIES.items()
    ]
    ends = [F.count_if(state == end).alias(end) for end in ENDS]
    is_unknown = ~has_succeeded & (F.col("cause") == "unknown")
    unknown = F.count_if(is_unknown).alias("unknown")
    return deliveries.groupBy(*BY).agg(*after, *ends, unknown)


def _between(number: Column, low: int, high: int | None) -> Column:
    return number >= low if high is None else number.between(low, high)


def _times(deliveries: DataFrame) -> DataFrame:
    """Compute deliveries' exact times from acceptance to success, by rank."""
    group = Window.partitionBy(*BY)
    ranked = deliveries.where(F.col("state") == "delivered").select(
        *BY,
        "took_ms",
        F.row_number().over(group.orderBy("took_ms")).alias("rank"),
        F.count(F.lit(1)).over(group).alias("number"),
    )
    quantiles = [_quantile(percent).alias(name) for name, percent in PERCENTS.items()]
    return ranked.groupBy(*BY).agg(
        F.count(F.lit(1)).alias("timed"),
        *quantiles,
        F.max("took_ms").alias("longest_ms"),
    )


def _quantile(percent: int) -> Column:
    """Return, by rank, the least time that this share of deliveries did not exceed."""
    # In whole numbers: a float may round up to a share that the next rank reaches.
    reaches = F.col("rank").cast("bigint") * 100 >= F.col("number") * percent
    return F.min(F.when(reaches, F.col("took_ms")))
