"""Intervals and quantiles, against plain Python."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark.transforms import handling_time_quantiles, wilson_intervals

pytestmark = pytest.mark.spark

Z = 1.959964
COUNTS = st.integers(0, 2**50) | st.integers(0, 20)
HISTOGRAMS = st.dictionaries(st.integers(0, 63), st.integers(0, 2**31 - 1), max_size=6)
# Each example is a table: Spark's time does not depend on the number of rows.
patient = settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def wilson(failed: int, delivered: int) -> tuple[float, float, float]:
    """Compute Wilson's interval (1927), as in textbooks."""
    n, p = delivered, failed / delivered
    middle, scale = p + Z**2 / (2 * n), 1 + Z**2 / n
    reach = Z * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    return p, (middle - reach) / scale, (middle + reach) / scale


@patient
@given(pairs=st.lists(st.tuples(COUNTS, COUNTS), min_size=50, max_size=200))
def test_bounds_of_a_rate_are_wilsons(
    spark: SparkSession, pairs: list[tuple[int, int]]
) -> None:
    table = spark.createDataFrame(pairs, "failed bigint, delivered bigint")

    rows = wilson_intervals.with_rate(table, failed=F.col("failed")).collect()

    for row in rows:
        bounds = (row.failure_rate, row.rate_low, row.rate_high)
        if not row.delivered or row.failed > row.delivered:
            assert bounds == (None, None, None)
            continue
        assert bounds == pytest.approx(wilson(row.failed, row.delivered), abs=1e-9)
        rate, low, high = bounds
        assert 0 <= low <= rate <= high <= 1


def test_has_no_rate_without_a_number_of_deliveries(spark: SparkSession) -> None:
    table = spark.createDataFrame([(3, None)], "failed bigint, delivered bigint")

    (row,) = wilson_intervals.with_rate(table, failed=F.col("failed")).collect()

    assert (row.failure_rate, row.rate_low, row.rate_high) == (None, None, None)


def bound(histogram: dict[int, int], percent: int) -> int | None:
    """Find the bucket of the duration with that rank, by definition."""
    number = sum(histogram.values())
    rank = math.ceil(Fraction(percent, 100) * number)
    for bucket, count in sorted(histogram.items()):
        rank -= count
        if rank <= 0 and number:
            return int(min(2 ** (bucket + 1), 2**63 - 1))
    return None


@patient
@given(histograms=st.lists(HISTOGRAMS, min_size=20, max_size=60))
def test_computes_quantiles_of_a_histogram(
    spark: SparkSession, histograms: list[dict[int, int]]
) -> None:
    maps = [
        (n, {str(b): c for b, c in each.items()}) for n, each in enumerate(histograms)
    ]
    table = spark.createDataFrame(maps, "n int, histogram map<string, bigint>")

    ranked = handling_time_quantiles.with_ranks(
        handling_time_quantiles.by_bucket(table, "histogram", once=[]), "n"
    )
    rows = ranked.groupBy("n").agg(*handling_time_quantiles.quantiles()).collect()
    quantiles = {row.n: (row.p50_ms, row.p95_ms, row.p99_ms) for row in rows}

    for n, histogram in enumerate(histograms):
        expected = tuple(bound(histogram, percent) for percent in (50, 95, 99))
        assert quantiles[n] == expected


def test_counts_once_the_columns_beside_a_histogram(spark: SparkSession) -> None:
    table_rows = [({"3": 4, "63": 6}, 10), ({}, 20), (None, 40), ({"7": 0}, 80)]
    table = spark.createDataFrame(
        table_rows, "histogram map<string, bigint>, handled bigint"
    )

    rows = handling_time_quantiles.by_bucket(
        table, "histogram", once=["handled"]
    ).collect()

    buckets = sorted((row.bucket, row.durations) for row in rows if row.durations)
    assert buckets == [(3, 4), (63, 6)]
    assert sum(row.handled for row in rows) == 150
    assert len(rows) == 2 + 1 + 1 + 1


def test_ignores_keys_that_are_not_buckets(spark: SparkSession) -> None:
    keys = ("64", "-1", "", "x", "1.5", "9" * 30, "\u0663\u202e", "3")
    table = spark.createDataFrame(
        [(dict.fromkeys(keys, 5), 7)], "histogram map<string, bigint>, handled bigint"
    )

    rows = handling_time_quantiles.by_bucket(
        table, "histogram", once=["handled"]
    ).collect()

    buckets = [(row.bucket, row.durations) for row in rows if row.durations is not None]
    assert buckets == [(3, 5)]
    assert sum(row.handled for row in rows) == 7
