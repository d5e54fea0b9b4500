"""Outcomes of endpoints by day: calls, ends, backlogs and times until success."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from datetime import date, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from apps.redelivery.endpoint_and_delivery_choices import FINISHED
from tests.spark.fact_rows import NOON, Facts, of_endpoints

pytestmark = pytest.mark.spark

HOSTILE = "a/b c% '\"\\`$1 \u202e\u2028 \N{PILE OF POO} e\u0301 {} <b>"
ONE_DAY = timedelta(days=1)
COUNTED = (
    *("after_1", "after_2", "after_3", "after_4_to_10", "after_more"),
    *("given_up", "dropped", "forwarded", "unknown"),
)


def test_a_success_counts_by_the_retries_before_it(spark: SparkSession) -> None:
    attempts = [1, 2, 2, 3, 4, 5, 11, 12, 400]
    deliveries = [{"attempts": number} for number in attempts]

    (row,) = of_endpoints(spark, deliveries=deliveries)

    assert (row.after_1, row.after_2, row.after_3) == (2, 1, 1)
    assert (row.after_4_to_10, row.after_more) == (2, 2)
    # The success at the first attempt is counted with the calls.
    assert (row.timed, row.succeeded_at_first, row.calls) == (9, 0, 0)


def test_each_end_that_is_no_success_counts_once(spark: SparkSession) -> None:
    deliveries: Facts = [
        {"state": "given_up", "cause": "exhausted"},
        {"state": "given_up", "cause": "unknown", "attempts": 1},
        {"state": "given_up", "cause": "expired", "attempts": 0},
        {"state": "dropped", "cause": "unknown"},
        {"state": "dropped", "cause": "manual"},
        {"state": "forwarded", "cause": "exhausted"},
        # A delivery that was restored after an unknown end, and succeeded.
        {"state": "delivered", "cause": "unknown"},
    ]

    (row,) = of_endpoints(spark, deliveries=deliveries)

    assert (row.given_up, row.dropped, row.forwarded) == (3, 2, 1)
    assert (row.unknown, row.after_1, row.timed) == (2, 1, 1)


def test_calls_are_added_up_and_not_counted_again_for_deliveries(
    spark: SparkSession,
) -> None:
    calls: Facts = [
        {"succeeded_at_first": 900, "succeeded_later": 2, "failed": 30},
        {"at": NOON + timedelta(minutes=1), "failed": 5},
    ]

    (row,) = of_endpoints(spark, calls=calls, deliveries=[{}, {"state": "dropped"}])

    assert (row.calls, row.succeeded_at_first) == (937, 900)
    assert (row.after_1, row.dropped) == (1, 1)


def test_times_are_exact_and_none_without_a_success(spark: SparkSession) -> None:
    deliveries: Facts = [
        *[{"took_ms": took} for took in (7, 1, 5, 3)],
        {"state": "dropped", "took_ms": 99_000},
        {"endpoint": "other", "state": "given_up"},
    ]

    other, quote = sorted(
        of_endpoints(spark, deliveries=deliveries), key=lambda row: row.endpoint
    )

    assert (quote.p50_ms, quote.p95_ms, quote.longest_ms) == (3, 7, 7)
    assert (other.timed, other.p50_ms, other.p95_ms, other.longest_ms) == (
        *(0, None, None, None),
    )


def test_a_quantile_at_the_edge_of_a_share_is_not_rounded_up(
    spark: SparkSession,
) -> None:
    # 95 % of 20 are exactly 19, and 0.95 * 20 is not in floats.
    deliveries = [{"took_ms": took} for took in range(1, 21)]

    (row,) = of_endpoints(spark, deliveries=deliveries)

    assert (row.p50_ms, row.p95_ms, row.longest_ms) == (10, 19, 20)


def test_days_and_endpoints_are_apart_whatever_their_names(
    spark: SparkSession,
) -> None:
    hostile = {"topic": f"gateway/{HOSTILE}", "endpoint": HOSTILE}
    yesterday = {"at": NOON - ONE_DAY}

    rows = of_endpoints(
        spark,
        calls=[hostile | {"failed": 3}, yesterday | {"failed": 4}],
        deliveries=[hostile | {"state": "dropped"}],
        backlogs=[hostile | yesterday | {"waiting": 5}, hostile | {"waiting": 2}],
    )

    by_place = {
        (row.day, row.endpoint): (row.calls, row.dropped, row.waiting) for row in rows
    }
    today = NOON.date()
    assert by_place == {
        (today, HOSTILE): (3, 1, 2),
        (today - ONE_DAY, HOSTILE): (0, 0, 5),
        (today - ONE_DAY, "quote"): (4, 0, 0),
    }


def test_without_facts_there_is_no_row(spark: SparkSession) -> None:
    assert of_endpoints(spark) == []


def test_many_deliveries_give_what_plain_python_counts(spark: SparkSession) -> None:
    draw = random.Random(18)
    deliveries = [
        {
            "at": NOON + draw.randrange(3) * ONE_DAY,
            "endpoint": draw.choice("xyz"),
            "state": draw.choice(["delivered", *FINISHED]),
            "cause": draw.choice(["", "unknown", "exhausted"]),
            "attempts": draw.choice([1, 1, 2, 3, 4, 5, 10, 11, 12, 13, 90]),
            "took_ms": int(draw.expovariate(0.001)),
        }
        for _ in range(500)
    ]

    rows = of_endpoints(spark, deliveries=deliveries)

    expected = {place: counted(of) for place, of in by_place(deliveries).items()}
    names = (*COUNTED, "timed", "p50_ms", "p95_ms", "longest_ms")
    assert expected == {
        (row.day, row.endpoint): {name: row[name] for name in names} for row in rows
    }


Delivery = dict[str, Any]


def by_place(deliveries: list[Delivery]) -> dict[tuple[date, str], list[Delivery]]:
    places = defaultdict(list)
    for each in deliveries:
        places[each["at"].date(), each["endpoint"]].append(each)
    return places


def counted(deliveries: list[Delivery]) -> dict[str, int]:
    """Count the deliveries of an endpoint's day with a dictionary and a sort."""
    counts = Counter(dict.fromkeys(COUNTED, 0))
    took = sorted(
        each["took_ms"] for each in deliveries if each["state"] == "delivered"
    )
    for each in deliveries:
        if each["state"] != "delivered":
            counts[each["state"]] += 1
            counts["unknown"] += each["cause"] == "unknown"
        elif each["attempts"] > 1:
            counts[band(each["attempts"] - 1)] += 1
    return dict(counts) | {
        "timed": len(took),
        "p50_ms": took[-(-len(took) * 50 // 100) - 1],
        "p95_ms": took[-(-len(took) * 95 // 100) - 1],
        "longest_ms": took[-1],
    }


def band(retries: int) -> str:
    """Name the column of a number of retries."""
    if retries <= 3:
        return f"after_{retries}"
    return "after_4_to_10" if retries in range(4, 11) else "after_more"
