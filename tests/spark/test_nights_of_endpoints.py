"""Endpoints in facts from a real Postgres, and in whole nights with the real job."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pytest_django import Settings

from apps.brokers.models import Topic
from apps.redelivery.models import Endpoint
from apps.reports.models import Day, EndpointDay
from apps.reports.services import (
    next_unfinished_run,
    planning,
    report_run_execution,
)
from spark import postgres_reading_and_writing
from spark.fact_sql_statements import FactWindow
from spark.lake_schemas import LakeKind
from tests.ended_deliveries import calls, delivery
from tests.integration.redelivery.endpoint_and_delivery_builders import endpoint
from tests.published_reports import endpoint_day, publish
from tests.spark.pytest_adbc_jdbc_parametrization import Export

pytestmark = [pytest.mark.spark, pytest.mark.django_db(transaction=True)]

HOSTILE = "a/b c% '\"\\`$1 \u202e\u2028 \N{PILE OF POO} e\u0301 {} <b>"
DAY = date(2026, 11, 18)
MIDNIGHT = datetime(2026, 11, 18, tzinfo=UTC)
AT_TWO = datetime(2026, 11, 20, 2, tzinfo=UTC)
HOUR, ONE_DAY = timedelta(hours=1), timedelta(days=1)
TICK = timedelta(microseconds=1)


def hostile() -> Endpoint:
    """Create an endpoint whose name no service would accept."""
    of = endpoint("odd")
    Endpoint.objects.filter(pk=of.pk).update(name=HOSTILE)
    Topic.objects.filter(pk=of.topic_id).update(name=f"gateway/{HOSTILE}")
    return Endpoint.objects.get(pk=of.pk)


def read(spark: SparkSession, kind: LakeKind, snapshot: str) -> list[Row]:
    """Read the facts of two days."""
    window = FactWindow(first=DAY, last=DAY + ONE_DAY, snapshot=snapshot)
    return postgres_reading_and_writing.read(spark, kind, window, blocks=1).collect()


def test_reads_calls_and_deliveries_of_their_days_with_hostile_names(
    spark: SparkSession, door: str, export: Export
) -> None:
    odd = hostile()
    took = timedelta(hours=50, microseconds=1999)
    for minute in (MIDNIGHT - TICK, MIDNIGHT + 2 * ONE_DAY):
        calls(odd, minute, failed=1)
        delivery(odd, "dropped", minute)
    calls(odd, MIDNIGHT, succeeded_at_first=2**40, succeeded_later=2, failed=3)
    delivery(odd, "given_up", MIDNIGHT, took=took, cause="unknown", attempts=12)
    # Its sender's clock was behind.
    delivery(odd, "delivered", MIDNIGHT + 2 * ONE_DAY - TICK, took=-HOUR)
    snapshot = export()
    delivery(odd, "dropped", MIDNIGHT)

    (call,) = read(spark, LakeKind.CALLS, snapshot)
    first, last = sorted(read(spark, LakeKind.DELIVERIES, snapshot))

    place = {"topic": f"gateway/{HOSTILE}", "endpoint": HOSTILE}
    midnight = MIDNIGHT.replace(tzinfo=None)
    assert call.asDict() == place | {
        "day": DAY,
        "at": midnight,
        "succeeded_at_first": 2**40,
        "succeeded_later": 2,
        "failed": 3,
    }
    assert first.asDict() == place | {
        "day": DAY,
        "at": midnight,
        "state": "given_up",
        "cause": "unknown",
        "attempts": 12,
        "took_ms": 50 * 3_600_000 + 1,
    }
    assert (last.day, last.state, last.took_ms) == (DAY + ONE_DAY, "delivered", 0)


def test_reads_what_waited_at_the_end_of_each_day(
    spark: SparkSession, door: str, export: Export
) -> None:
    odd, quote = hostile(), endpoint("quote")
    end = MIDNIGHT + ONE_DAY
    delivery(odd, "waiting", end - TICK)
    delivery(odd, "waiting", end)
    delivery(odd, "trying", MIDNIGHT - 90 * ONE_DAY, **OWNED)
    delivery(odd, "forwarding", MIDNIGHT)
    delivery(quote, "dropped", end, took=HOUR)
    delivery(quote, "dropped", end - TICK, took=HOUR)
    delivery(quote, "delivered", end + ONE_DAY, took=10 * ONE_DAY)

    rows = read(spark, LakeKind.BACKLOGS, export())

    waiting = {(row.day, row.endpoint): row.waiting for row in rows}
    assert waiting == {
        (DAY, HOSTILE): 3,
        (DAY + ONE_DAY, HOSTILE): 4,
        (DAY, "quote"): 2,
        (DAY + ONE_DAY, "quote"): 1,
    }
    assert {row["at"] for row in rows} == {
        (moment - TICK).replace(tzinfo=None) for moment in (end, end + ONE_DAY)
    }


OWNED: dict[str, Any] = {
    "claim": "0199a000-0000-7000-8000-00000000002a",
    "fence": 7,
    "claimed_until": AT_TWO,
}


@pytest.fixture
def lake(settings: Settings, tmp_path: Path) -> Path:
    settings.POISONWEB_LAKE = str(tmp_path / "lake")
    return tmp_path / "lake"


def night(now: datetime) -> None:
    """Plan this night, and make all of its runs."""
    planned = planning.plan(hour=1, now=now)
    while (run_id := next_unfinished_run.next_to_run()) is not None:
        report_run_execution.run(run_id=run_id, clock=lambda: now)
    for run in planned:
        run.refresh_from_db()
        assert run.trouble == ""


def rows_of(day: date) -> dict[str, tuple[int | None, ...]]:
    """Return the numbers of a day by endpoint."""
    rows = EndpointDay.objects.filter(day=day)
    return {row.endpoint: tuple(getattr(row, name) for name in NUMBERS) for row in rows}


NUMBERS = (
    *("calls", "succeeded_at_first"),
    *("after_1", "after_2", "after_3", "after_4_to_10", "after_more"),
    *("given_up", "dropped", "forwarded", "unknown", "waiting", "timed"),
    *("p50_ms", "p95_ms", "longest_ms"),
)


def test_nights_count_the_calls_and_deliveries_of_each_endpoint(lake: Path) -> None:
    odd, quote = hostile(), endpoint("quote")
    endpoint("unused")
    calls(odd, MIDNIGHT + 3 * HOUR, succeeded_at_first=995, failed=5)
    calls(odd, MIDNIGHT + 4 * HOUR, succeeded_at_first=1, succeeded_later=4)
    for attempts, seconds in ((1, 1), (2, 2), (4, 9), (11, 60), (12, 600)):
        took = timedelta(seconds=seconds)
        delivery(odd, "delivered", MIDNIGHT + 5 * HOUR, attempts=attempts, took=took)
    delivery(odd, "given_up", MIDNIGHT + 6 * HOUR, cause="unknown", attempts=1)
    delivery(odd, "dropped", MIDNIGHT + 6 * HOUR, cause="exhausted")
    delivery(odd, "dropped", MIDNIGHT + 7 * HOUR, cause="manual")
    delivery(odd, "forwarded", MIDNIGHT + 7 * HOUR, cause="expired")
    # Accepted on the first day, and delivered on the second.
    delivery(quote, "delivered", MIDNIGHT + 25 * HOUR, took=2 * HOUR)
    calls(quote, MIDNIGHT + 25 * HOUR, succeeded_later=1)

    night(AT_TWO)

    assert rows_of(DAY) == {
        HOSTILE: (1005, 996, 1, 0, 1, 1, 1, 1, 2, 1, 1, 0, 5, 9000, 600_000, 600_000),
        "quote": (*(0,) * 11, 1, 0, None, None, None),
    }
    two_hours = 2 * 3_600_000
    assert rows_of(DAY + ONE_DAY) == {
        "quote": (1, 0, 1, *(0,) * 9, 1, two_hours, two_hours, two_hours)
    }
    assert Day.objects.get(day=DAY).rows_in == 2 + 9 + 1
    assert (lake / f"endpoints/day={DAY}").is_dir()


def test_a_night_makes_a_day_again_that_has_a_late_end(lake: Path) -> None:
    quote = endpoint("quote")
    publish(DAY)
    endpoint_day(DAY, dropped=2, timed=1, after_1=1, given_up=0)
    calls(quote, MIDNIGHT, succeeded_at_first=13, failed=7)
    delivery(quote, "dropped", MIDNIGHT)
    delivery(quote, "delivered", MIDNIGHT)
    # A person restored a drop; and two ends of that day were recorded late.
    delivery(quote, "waiting", MIDNIGHT)
    delivery(quote, "delivered", MIDNIGHT + 8 * HOUR, took=HOUR)
    delivery(quote, "forwarded", MIDNIGHT + 8 * HOUR)

    night(AT_TWO)

    numbers = dict(zip(NUMBERS, rows_of(DAY)["quote"], strict=True))
    assert (numbers["calls"], numbers["after_1"], numbers["timed"]) == (20, 2, 2)
    assert (numbers["forwarded"], numbers["dropped"], numbers["waiting"]) == (1, 1, 1)
    assert (numbers["p50_ms"], numbers["longest_ms"]) == (3000, 3_600_000)
    assert dict(zip(NUMBERS, rows_of(DAY + ONE_DAY)["quote"], strict=True)) == {
        **dict.fromkeys(NUMBERS, 0),
        **dict.fromkeys(("p50_ms", "p95_ms", "longest_ms")),
        "waiting": 1,
    }
