"""Rates: sources, grains, nulls, and dropped counts."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyspark.sql import Row, SparkSession

from tests.spark.fact_rows import NOON, Facts, rated

pytestmark = pytest.mark.spark

HOSTILE = "a/b c%🧨\u202e'\"\\`$1\u2028" + "x" * 200


def one(rows: list[Row], **key: object) -> Row:
    """Return the only row with these values; hour and group default to null."""
    expected = {"hour": None, "consumer_group": None, **key}
    matches = [row for row in rows if all(row[k] == v for k, v in expected.items())]
    assert len(matches) == 1, (expected, rows)
    return matches[0]


def test_measures_an_hour_of_a_group_a_day_and_both_over_all_groups(
    spark: SparkSession,
) -> None:
    later = NOON + timedelta(hours=1)
    counters: Facts = [
        {"handled": 90, "failed": 10, "skipped": 4, "retried": 3},
        {"at": later, "handled": 50},
        {"consumer_group": "mail", "handled": 20, "failed": 5},
    ]

    rows = rated(spark, counters=counters)

    hour = one(rows, hour=12, consumer_group="billing")
    assert (hour.delivered, hour.failed, hour.failure_rate) == (100, 10, 0.1)
    assert (hour.skipped, hour.retried, hour.source) == (4, 3, "sdk")
    assert one(rows, consumer_group="billing").delivered == 150
    assert one(rows, hour=12).delivered == 125
    assert one(rows).delivered == 175
    assert len(rows) == 3 + 2 + 2 + 1


def test_prefers_the_counts_of_consumers_and_then_of_the_broker(
    spark: SparkSession,
) -> None:
    groups = ("both", "broker", "nobody")
    counters: Facts = [
        {"consumer_group": "both", "source": "broker", "handled": 999, "skipped": 1},
        {"consumer_group": "both", "source": "sdk", "handled": 8, "failed": 2},
        {"consumer_group": "broker", "source": "broker", "handled": 10, "failed": 7},
    ]
    failures = [{"consumer_group": group} for group in groups for _ in range(4)]

    rows = rated(spark, counters=counters, failures=failures)

    both, broker, nobody = (one(rows, consumer_group=group) for group in groups)
    assert (both.source, both.delivered, both.failed) == ("sdk", 10, 2)
    assert (both.skipped, both.poisoned, both.failure_rate) == (0, 4, 0.2)
    assert (broker.source, broker.delivered, broker.failed) == ("broker", 10, 4)
    assert (nobody.source, nobody.delivered, nobody.failed) == ("none", None, 4)
    assert (nobody.uncounted, nobody.failure_rate, nobody.rate_high) == (4, None, None)
    over_all = one(rows)
    assert (over_all.source, over_all.delivered, over_all.failed) == ("sdk", 20, 10)
    assert (over_all.uncounted, over_all.failure_rate) == (4, 6 / 20)


def test_drops_hours_that_only_a_lesser_source_counted(
    spark: SparkSession,
) -> None:
    later = NOON + timedelta(hours=1)
    counters: Facts = [{"handled": 5}, {"at": later, "source": "broker", "handled": 9}]

    rows = rated(spark, counters=counters)

    assert {row.hour for row in rows} == {12, None}
    assert one(rows).delivered == 5


def test_has_a_row_for_failures_or_decisions_without_deliveries(
    spark: SparkSession,
) -> None:
    failures = [{"topic": "failed", "is_first": first} for first in (True, False)]
    decisions = [
        {"topic": "decided", "what": what}
        for what in ("redriven", "redriven", "confirmed", "recurred", "dropped")
    ]

    rows = rated(spark, failures=failures, decisions=decisions)

    failed, decided = one(rows, topic="failed"), one(rows, topic="decided")
    assert (failed.failed, failed.poisoned, failed.uncounted) == (2, 1, 2)
    assert (decided.redriven, decided.confirmed) == (2, 1)
    assert (decided.recurred, decided.dropped, decided.failed) == (1, 1, 0)
    assert (decided.source, decided.delivered) == ("none", None)
    assert len(rows) == 8


def test_has_no_rate_without_deliveries(spark: SparkSession) -> None:
    rows = rated(spark, counters=[{"skipped": 3}], failures=[{}])

    row = one(rows)

    assert (row.source, row.delivered, row.skipped) == ("sdk", 0, 3)
    assert (row.failure_rate, row.rate_low, row.rate_high) == (None, None, None)
    assert (row.p50_ms, row.p95_ms, row.p99_ms) == (None, None, None)


def test_has_no_rate_if_more_failed_than_the_broker_delivered(
    spark: SparkSession,
) -> None:
    counters = [{"source": "broker", "handled": 2}]

    row = one(rated(spark, counters=counters, failures=[{}, {}, {}]))

    assert (row.delivered, row.failed) == (2, 3)
    assert (row.failure_rate, row.rate_low, row.rate_high) == (None, None, None)


def test_adds_up_the_histograms_of_clients_groups_and_hours(
    spark: SparkSession,
) -> None:
    counters: Facts = [
        {"duration_ms_hist": {"0": 50}},
        {"client_name": "billing-2", "duration_ms_hist": {"3": 45, "0": 0}},
        {"at": NOON + timedelta(hours=1), "duration_ms_hist": {"63": 5}},
        {"consumer_group": "mail", "duration_ms_hist": {}},
    ]

    rows = rated(spark, counters=counters)

    day, hour = one(rows), one(rows, hour=12, consumer_group="billing")
    assert (day.p50_ms, day.p95_ms, day.p99_ms) == (2, 16, 2**63 - 1)
    assert (hour.p50_ms, hour.p95_ms, hour.p99_ms) == (2, 16, 16)
    assert one(rows, consumer_group="mail").p50_ms is None


def test_keeps_hostile_names_apart_and_unchanged(spark: SparkSession) -> None:
    names = [HOSTILE, HOSTILE + " ", "", "null", "NULL", "é", "e\u0301"]
    counters = [{"topic": name, "consumer_group": name, "handled": 1} for name in names]

    rows = rated(spark, counters=counters, failures=counters)

    groups = {row.topic: row for row in rows if row.consumer_group is not None}
    assert set(groups) == set(names)
    assert {row.topic for row in rows} == set(names)
    assert all(row.consumer_group == name for name, row in groups.items())
    assert len(rows) == 4 * len(names)


def test_counts_days_in_utc(spark: SparkSession) -> None:
    midnight = NOON.replace(hour=0) + timedelta(days=1)
    moments = [midnight - timedelta(microseconds=1), midnight]

    rows = rated(spark, failures=[{"at": moment} for moment in moments])

    hours = [(row.day, row.hour) for row in rows if row.hour is not None]
    assert sorted(set(hours)) == [(m.date(), m.hour) for m in moments]


def test_rates_do_not_depend_on_the_order_of_rows(spark: SparkSession) -> None:
    counters = [
        {"consumer_group": f"g{n % 7}", "handled": n, "failed": n % 3}
        | {"source": "sdk" if n % 2 else "broker", "duration_ms_hist": {str(n % 9): n}}
        for n in range(200)
    ]

    first = rated(spark, counters=counters, failures=counters[:50])
    again = rated(spark, counters=counters[::-1], failures=counters[:50])

    assert sorted(map(repr, first)) == sorted(map(repr, again))
