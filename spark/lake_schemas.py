"""The schemas of the lake, declared for each kind and never inferred.

Facts are events; measures are computed from them. `day` is the UTC day of `at`, and the
partition; it is the first column of every kind.
"""

from __future__ import annotations

from enum import StrEnum
from typing import cast

from pyspark.sql.types import StructType

# log2 buckets of handling time: bucket b counts 2^b up to 2^(b+1) milliseconds.
BUCKETS = 64


class LakeKind(StrEnum):
    FAILURES = "failures"
    COUNTERS = "counters"
    DECISIONS = "decisions"
    RATES = "rates"
    PROBLEMS = "problems"


FACTS = (LakeKind.FAILURES, LakeKind.COUNTERS, LakeKind.DECISIONS)

# The measures of topics and of problems alike.
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
    LakeKind.FAILURES: """
        day date, at timestamp, topic string, consumer_group string, problem bigint,
        poison bigint, cause string, is_first boolean, attempts int, times int
    """,
    LakeKind.COUNTERS: """
        day date, at timestamp, topic string, consumer_group string,
        client_name string, source string,
        handled bigint, failed bigint, skipped bigint, retried bigint,
        duration_ms_hist map<string, bigint>
    """,
    LakeKind.DECISIONS: """
        day date, at timestamp, topic string, consumer_group string, problem bigint,
        what string
    """,
    LakeKind.RATES: f"""
        day date, hour smallint, topic string, consumer_group string, source string,
        uncounted bigint, skipped bigint, {_MEASURES},
        p50_ms bigint, p95_ms bigint, p99_ms bigint
    """,
    LakeKind.PROBLEMS: f"day date, problem bigint, {_MEASURES}",
}


def schema(kind: LakeKind) -> StructType:
    """Return the schema of a kind; Spark parses it, so a session must have started."""
    return cast(StructType, StructType.fromDDL(SCHEMAS[kind]))
