"""Literal facts for the transforms, with defaults for all columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from spark.lake_schemas import LakeKind, schema
from spark.transforms import hourly_counts
from spark.transforms.daily_problem_counts import problems
from spark.transforms.endpoint_outcomes import outcomes
from spark.transforms.topic_failure_rates import rates

Facts = Sequence[Mapping[str, object]]

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
PLACE = {"at": NOON, "topic": "orders", "consumer_group": "billing"}
GATEWAY_PLACE = {"at": NOON, "topic": "gateway/quote", "endpoint": "quote"}
PLAIN: dict[LakeKind, dict[str, object]] = {
    LakeKind.FAILURES: PLACE
    | {"problem": 1, "poison": 1, "cause": "fatal", "is_first": True}
    | {"attempts": 1, "times": 1},
    LakeKind.COUNTERS: PLACE
    | {"client_name": "billing-1", "source": "sdk", "duration_ms_hist": {}}
    | dict.fromkeys(("handled", "failed", "skipped", "retried"), 0),
    LakeKind.DECISIONS: PLACE | {"problem": 1, "what": "redriven"},
    LakeKind.CALLS: GATEWAY_PLACE
    | dict.fromkeys(("succeeded_at_first", "succeeded_later", "failed"), 0),
    LakeKind.DELIVERIES: GATEWAY_PLACE
    | {"state": "delivered", "cause": "", "attempts": 2, "took_ms": 3000},
    LakeKind.BACKLOGS: GATEWAY_PLACE | {"waiting": 1},
}


def facts(spark: SparkSession, kind: LakeKind, rows: Facts) -> DataFrame:
    looks = schema(kind)
    # Through Arrow: rows of plain Python would start Python workers.
    columns = to_arrow_schema(looks, timezone="UTC")
    full = [_full(kind, row) for row in rows]
    return spark.createDataFrame(pa.Table.from_pylist(full, columns), looks)


def _full(kind: LakeKind, row: Mapping[str, object]) -> dict[str, object]:
    full = {**PLAIN[kind], **row}
    return {**full, "day": cast(datetime, full["at"]).date()}


def by_hour(
    spark: SparkSession,
    *,
    failures: Facts | None = None,
    counters: Facts | None = None,
    decisions: Facts | None = None,
) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Return the facts counted by hour, as the job does."""
    return (
        hourly_counts.failures_by_hour(facts(spark, LakeKind.FAILURES, failures or [])),
        hourly_counts.counters_by_hour(facts(spark, LakeKind.COUNTERS, counters or [])),
        hourly_counts.decisions_by_hour(
            facts(spark, LakeKind.DECISIONS, decisions or [])
        ),
    )


def rated(spark: SparkSession, **facts_by_kind: Facts) -> list[Row]:
    measures = rates(*by_hour(spark, **facts_by_kind))
    assert measures.schema.names == schema(LakeKind.RATES).names
    return measures.collect()


def of_problems(spark: SparkSession, **facts_by_kind: Facts) -> list[Row]:
    failed, counted, decided = by_hour(spark, **facts_by_kind)
    measures = problems(failed, decided, rates(failed, counted, decided))
    assert measures.schema.names == schema(LakeKind.PROBLEMS).names
    return measures.collect()


def of_endpoints(
    spark: SparkSession,
    *,
    calls: Facts | None = None,
    deliveries: Facts | None = None,
    backlogs: Facts | None = None,
) -> list[Row]:
    measures = outcomes(
        facts(spark, LakeKind.CALLS, calls or []),
        facts(spark, LakeKind.DELIVERIES, deliveries or []),
        facts(spark, LakeKind.BACKLOGS, backlogs or []),
    )
    assert measures.schema.names == schema(LakeKind.ENDPOINTS).names
    return measures.collect()
