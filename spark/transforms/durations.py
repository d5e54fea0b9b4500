"""Handling times: histograms of log2 buckets, added up, and quantiles read off them.

Whatever the order of the rows, the sums are the same, and so are their quantiles. What
is said of each of the many buckets is said as text: columns made one by one take Spark
longer than adding up.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.schemas import BUCKETS

PERCENTS = {"p50_ms": 50, "p95_ms": 95, "p99_ms": 99}
MOST = 2**63 - 1  # what a bigint holds: less than the bounds of the last two buckets
BOUNDS = [min(2 ** (bucket + 1), MOST) for bucket in range(BUCKETS)]


def total_of_maps(name: str) -> Column:
    """Add a column of maps, bucket to count, up into an array with all buckets."""
    return _totals(f"try_element_at({name}, '{bucket}')" for bucket in range(BUCKETS))


def total(name: str) -> Column:
    """Add a column of such arrays up; rows without one do not count."""
    return _totals(f"get({name}, {bucket})" for bucket in range(BUCKETS))


def with_quantiles(measured: DataFrame, name: str) -> DataFrame:
    """Add, for a column of such arrays, the milliseconds that so many stayed below.

    That is the exclusive bound of the bucket in which the last of so many per cent
    lies, and null without durations.
    """
    # Apart and used twice, so that Spark compiles it instead of inlining it below.
    filled = measured.withColumn(name, _filled(name))
    none, nothing = F.lit(0).cast("bigint"), F.lit(None).cast("bigint")
    number = F.aggregate(name, none, lambda sum_, bucket: sum_ + bucket["count"])
    # In the state, as a lambda works out anew each time what it takes from outside.
    start = _state(number, none, dict.fromkeys(PERCENTS, nothing))
    found = F.aggregate(name, start, _look)
    looked = filled.withColumn("found", found)
    return looked.select("*", *[F.col("found")[each].alias(each) for each in PERCENTS])


def _totals(counts: Iterable[str]) -> Column:
    totals = ", ".join(f"coalesce(sum({count}), 0L)" for count in counts)
    return F.expr(f"array({totals})")


def _filled(name: str) -> Column:
    """List the bounds and counts of the buckets that hold anything: they are few."""
    filled = (
        f"if(get({name}, {bucket}) > 0,"
        f" struct({bound}L AS bound, get({name}, {bucket}) AS count), null)"
        for bucket, bound in enumerate(BOUNDS)
    )
    return F.expr(f"array_compact(array({', '.join(filled)}))")


def _state(number: Column, seen: Column, found: dict[str, Column]) -> Column:
    named = [bound.alias(name) for name, bound in found.items()]
    return F.struct(number.alias("number"), seen.alias("seen"), *named)


def _look(before: Column, bucket: Column) -> Column:
    """Take the bound for each quantile that this bucket is the first to reach."""
    number, seen = before["number"], before["seen"] + bucket["count"]
    found = {
        # In whole numbers: a float may round up to what only the next bucket reaches.
        name: F.when(before[name].isNotNull(), before[name]).when(
            seen * 100 >= number * percent, bucket["bound"]
        )
        for name, percent in PERCENTS.items()
    }
    return _state(number, seen, found)
