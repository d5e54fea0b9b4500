"""Handling times: sum histograms of log2 buckets, and compute quantiles from them.

To be summed, each bucket with a count is a row: with a column for every possible
bucket, Spark would need longer than for the whole rest of a night. The sums and
quantiles do not depend on the order of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark.lake_schemas import BUCKETS

PERCENTS = {"p50_ms": 50, "p95_ms": 95, "p99_ms": 99}
MOST = 2**63 - 1  # the largest bigint, less than the bounds of the last two buckets
LAST = BUCKETS - 1


def by_bucket(rows: DataFrame, histogram: str, *, once: Sequence[str]) -> DataFrame:
    """Explode a column of maps into a row per bucket, with `bucket` and `durations`.

    The columns in `once` keep their value in the first row and are 0 in the others, so
    that their sums stay the same. A row without buckets stays one row.
    """
    parts = F.posexplode_outer(histogram).alias("part", "key", "count")
    exploded = rows.select("*", parts)
    is_first = F.coalesce("part", F.lit(0)) == 0
    number = F.col("key").try_cast("int")
    is_bucket = number.between(0, LAST)
    once_columns = {name: F.when(is_first, F.col(name)).otherwise(0) for name in once}
    bucket_columns = {
        "bucket": F.when(is_bucket, number),
        "durations": F.when(is_bucket, F.col("count")),
    }
    return exploded.withColumns(once_columns | bucket_columns)


def with_ranks(buckets: DataFrame, *by: str) -> DataFrame:
    """Rank handling times: add each group's `number`, and running sum `seen`."""
    group = Window.partitionBy(*by)
    return buckets.withColumns(
        {
            "number": F.sum("durations").over(group),
            "seen": F.sum("durations").over(group.orderBy("bucket")),
        }
    )


def quantiles() -> list[Column]:
    """Compute the quantiles of handling times in buckets, in milliseconds.

    A quantile is the exclusive upper bound of the bucket in which it lies, and null
    without durations.
    """
    return [_quantile(percent).alias(name) for name, percent in PERCENTS.items()]


def _quantile(percent: int) -> Column:
    """Return the bound of the bucket that reaches this share of handling times."""
    # In whole numbers: a float may round up to a share that the next bucket reaches.
    reaches = F.col("seen") * 100 >= F.col("number") * percent
    return F.min(F.when(reaches & (F.col("durations") > 0), _bound()))


def _bound() -> Column:
    """Return the upper bound of a bucket of handling times in milliseconds."""
    power = F.expr("shiftleft(1L, bucket + 1)")
    return F.when(F.col("bucket") < LAST - 1, power).otherwise(MOST)
