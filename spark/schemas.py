"""What lies in the lake, kind by kind. A schema is told, never inferred.

Facts are what happened; measures are what was computed from them. `day` is the UTC day
of `at`, and the partition; it leads every kind.
"""

from __future__ import annotations

from enum import StrEnum
from typing import cast

from pyspark.sql.types import StructType

# log2 buckets of handling time: bucket b counts 2^b up to 2^(b+1) milliseconds.
BUCKETS = 64


class Kind(StrEnum):
    FAILURES = "failures"
    COUNTERS = "counters"
    DECISIONS = "decisions"
    RATES = "rates"
    PROBLEMS = "problems"


FACTS = (Kind.FAILURES, Kind.COUNTERS, Kind.DECISIONS)

# What is measured of topics and of problems alike.
COUNTED = (
    *("delivered", "failed", "poisoned", "retried"),
    *("redriven", "confirmed", "recurred", "dropped"),
)
RATED = ("failure_rate", "rate_low", "rate_high")
MEASURES = COUNTED + RATED
_MEASURES = ", ".join(
    [f"{name} bigint" for name in COUNTED] + [f"{name} double" for name in RATED]
)

SCHEMAS = {
    Kind.FAILURES: """
        day date, at timestamp, topic string, consumer_group string, problem bigint,
        poison bigint, cause string, is_first boolean, attempts int
    """,
    Kind.COUNTERS: """
        day date, at timestamp, topic string, consumer_group string,
        client_name string, source string,
        handled bigint, failed bigint, skipped bigint, retried bigint,
        duration_ms_hist map<string, bigint>
    """,
    Kind.DECISIONS: """
        day date, at timestamp, topic string, consumer_group string, problem bigint,
        what string
    """,
    Kind.RATES: f"""
        day date, hour smallint, topic string, consumer_group string, source string,
        uncounted bigint, skipped bigint, {_MEASURES},
        p50_ms bigint, p95_ms bigint, p99_ms bigint
    """,
    Kind.PROBLEMS: f"day date, problem bigint, {_MEASURES}",
}


def schema(kind: Kind) -> StructType:
    """Give what a kind looks like; Spark reads it, so a session must have started."""
    return cast(StructType, StructType.fromDDL(SCHEMAS[kind]))
