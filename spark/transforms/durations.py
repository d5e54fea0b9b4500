"""Handling times: histograms of log2 buckets, added up, and quantiles read off them.

While they are added up, each bucket that holds anything is a row: a column for every
bucket that there could be takes Spark longer than all the rest of a night. Whatever
the order of the rows, the sums are the same, and so are their quantiles.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark.schemas import BUCKETS

PERCENTS = {"p50_ms": 50, "p95_ms": 95, "p99_ms": 99}
MOST = 2**63 - 1  # what a bigint holds: less than the bounds of the last two buckets
LAST = BUCKETS - 1


def by_bucket(rows: DataFrame, histogram: str, *, once: Sequence[str]) -> DataFrame:
    """Give each bucket of a column of maps a row, with its `bucket` and `durations`.

    What the columns `once` say goes to the first bucket of a row, and 0 to the others,
    so that their sums stay the same. A row with no bucket stays one.
    """
    parts = F.posexplode_outer(histogram).alias("part", "key", "count")
    spread = rows.select("*", parts)
    is_first = F.coalesce("part", F.lit(0)) == 0
    number = F.col("key").try_cast("int")
    is_bucket = number.between(0, LAST)
    said_once = {name: F.when(is_first, F.col(name)).otherwise(0) for name in once}
    of_bucket = {
        "bucket": F.when(is_bucket, number),
        "durations": F.when(is_bucket, F.col("count")),
    }
    return spread.withColumns(said_once | of_bucket)


def with_ranks(buckets: DataFrame, *by: str) -> DataFrame:
    """Add the `number` of durations in a group, and those `seen` up to each bucket."""
    group = Window.partitionBy(*by)
    return buckets.withColumns(
        {
            "number": F.sum("durations").over(group),
            "seen": F.sum("durations").over(group.orderBy("bucket")),
        }
    )


def quantiles() -> list[Column]:
    """Find in ranked buckets the milliseconds that so many per cent stayed below.

    That is the exclusive bound of the bucket in which the last of so many per cent
    lies, and null without durations.
    """
    return [_quantile(percent).alias(name) for name, percent in PERCENTS.items()]


def _quantile(percent: int) -> Column:
    # In whole numbers: a float may round up to what only the next bucket reaches.
    reaches = F.col("seen") * 100 >= F.col("number") * percent
    return F.min(F.when(reaches & (F.col("durations") > 0), _bound()))


def _bound() -> Column:
    power = F.expr("shiftleft(1L, bucket + 1)")
    return F.when(F.col("bucket") < LAST - 1, power).otherwise(MOST)
