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
    CALLS = "calls"
    DELIVERIES = "deliveries"
    BACKLOGS = "backlogs"
    RATES = "rates"
    PROBLEMS = "problems"
    ENDPOINTS = "endpoints"


FACTS_OF_TOPICS = (LakeKind.FAILURES, LakeKind.COUNTERS, LakeKind.DECISIONS)
FACTS_OF_ENDPOINTS = (LakeKind.CALLS, LakeKind.DELIVERIES, LakeKind.BACKLOGS)
FACTS = FACTS_OF_TOPICS + FACTS_OF_ENDPOINTS

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

# The measures of endpoints. Successes after a number of retries are of deliveries, as
# are all counts but the first two.
ENDPOINT_COUNTS = (
    *("calls", "succeeded_at_first"),
    *("after_1", "after_2", "after_3", "after_4_to_10", "after_more"),
    *("given_up", "dropped", "forwarded", "unknown", "waiting", "timed"),
)
ENDPOINT_TIMES = ("p50_ms", "p95_ms", "longest_ms")
_ENDPOINT_MEASURES = ", ".join(
    f"{name} bigint" for name in ENDPOINT_COUNTS + ENDPOINT_TIMES
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
    LakeKind.CALLS: """
        day date, at timestamp, topic string, endpoint string,
        succeeded_at_first bigint, succeeded_later bigint, failed bigint
    """,
    LakeKind.DELIVERIES: """
        day date, at timestamp, topic string, endpoint string, state string,
        cause string, attempts int, took_ms bigint
    """,
    LakeKind.BACKLOGS: """
        day date, at timestamp, topic string, endpoint string, waiting bigint
    """,
    LakeKind.RATES: f"""
        day date, hour smallint, topic string, consumer_group string, source string,
        uncounted bigint, skipped bigint, {_MEASURES},
        p50_ms bigint, p95_ms bigint, p99_ms bigint
    """,
    LakeKind.PROBLEMS: f"day date, problem bigint, {_MEASURES}",
    LakeKind.ENDPOINTS: f"""
        day date, topic string, endpoint string, {_ENDPOINT_MEASURES}
    """,
}


def schema(kind: LakeKind) -> StructType:
    """Return the lake's schema of facts or measures; a session must have started."""
    return cast(StructType, StructType.fromDDL(SCHEMAS[kind]))
