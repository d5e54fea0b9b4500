"""Problems by day: failures, decisions, and deliveries."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from tests.spark.fact_rows import NOON, Facts, of_problems

pytestmark = pytest.mark.spark


def test_rates_a_problem_by_the_deliveries_of_its_group(
    spark: SparkSession,
) -> None:
    failures: Facts = [
        {"problem": 1, "attempts": 5},
        {"problem": 1, "attempts": 0, "is_first": False},
        {"problem": 2, "at": NOON + timedelta(hours=3)},
        {"problem": 3, "consumer_group": "mail"},
    ]
    counters = [{"handled": 30, "failed": 10, "retried": 99}]

    rows = of_problems(spark, failures=failures, counters=counters)

    first, second, third = sorted(rows, key=lambda row: row.problem)
    assert (first.delivered, first.failed, first.poisoned) == (40, 2, 1)
    assert (first.retried, first.failure_rate) == (4, 2 / 40)
    assert (second.delivered, second.failed, second.retried) == (40, 1, 0)
    assert (third.delivered, third.failed, third.failure_rate) == (None, 1, None)


def test_a_failure_counts_for_all_that_it_stands_for(spark: SparkSession) -> None:
    failures: Facts = [
        {"attempts": 3},
        {"attempts": 0, "is_first": False},
        {"attempts": 250, "times": 200, "is_first": False},
    ]

    (row,) = of_problems(spark, failures=failures)

    assert (row.failed, row.poisoned, row.retried) == (202, 1, 2 + 50)


def test_counts_decisions_on_days_without_failures(spark: SparkSession) -> None:
    tomorrow = NOON + timedelta(days=1)
    decisions = [
        {"at": tomorrow, "what": what}
        for what in ("redriven", "confirmed", "confirmed", "recurred", "dropped")
    ]

    rows = of_problems(
        spark, failures=[{}], decisions=decisions, counters=[{"at": tomorrow}]
    )

    today, after = sorted(rows, key=lambda row: row.day)
    assert (today.failed, today.redriven, today.delivered) == (1, 0, None)
    assert (after.failed, after.redriven, after.confirmed) == (0, 1, 2)
    assert (after.recurred, after.dropped) == (1, 1)
    assert (after.delivered, after.failure_rate) == (0, None)


def test_places_a_problem_where_it_fails_and_not_where_it_came_from(
    spark: SparkSession,
) -> None:
    failures = [{"topic": "repaired"}]
    decisions = [{"topic": "orders"}]
    counters = [
        {"topic": "repaired", "handled": 4},
        {"topic": "orders", "handled": 1000},
    ]

    (row,) = of_problems(
        spark, failures=failures, decisions=decisions, counters=counters
    )

    assert (row.delivered, row.failed, row.redriven) == (4, 1, 1)
