"""How the calls of endpoints ended by day, over the API."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from apps.team.rights import Scope
from tests.integration.api.schema_checking_client import program
from tests.published_reports import ONE_DAY, endpoint_day, publish

pytestmark = pytest.mark.django_db

PATH = "reports/endpoints"
MONDAY, TUESDAY = date(2026, 11, 16), date(2026, 11, 17)
THEN = {"from": "2026-11-16", "to": "2026-11-17"}


def test_a_day_of_an_endpoint_has_its_numbers_and_its_run() -> None:
    (day,) = publish(MONDAY)
    times = {"p50_ms": 1, "p95_ms": 20, "longest_ms": 300}
    retries = {"after_2": 3, "after_3": 4, "after_4_to_10": 5, "after_more": 6}
    ends = {"given_up": 8, "dropped": 9, "forwarded": 10, "unknown": 11}
    numbers: dict[str, Any] = times | retries | ends | {"waiting": 12, "timed": 21}
    endpoint_day(MONDAY, is_partial=True, **numbers)

    (row,) = program(Scope.REPORTS_READ).get(PATH, **THEN).results

    assert row == numbers | {
        "day": "2026-11-16",
        "endpoint": "quote",
        "topic": "gateway/quote",
        "calls": 20,
        "succeeded_at_first": 13,
        "after_1": 2,
        "is_partial": True,
        "run": day.run_id,
    }


def test_the_newest_day_comes_first_and_only_the_days_asked_for() -> None:
    publish(MONDAY - ONE_DAY, MONDAY, TUESDAY, TUESDAY + ONE_DAY)
    for number in range(4):
        endpoint_day(MONDAY + (number - 1) * ONE_DAY)
    caller = program(Scope.REPORTS_READ)

    days = [row["day"] for row in caller.get(PATH, **THEN).results]

    assert days == ["2026-11-17", "2026-11-16"]
    assert caller.get(PATH, endpoint="other", **THEN).results == []
    assert len(caller.get(PATH, endpoint="quote", **THEN).results) == 2


def test_a_key_sees_the_endpoints_of_its_topics() -> None:
    publish(MONDAY)
    endpoint_day(MONDAY)
    endpoint_day(MONDAY, "other")
    caller = program(Scope.REPORTS_READ, topics=["gateway/q*"])

    names = [row["endpoint"] for row in caller.get(PATH, **THEN).results]

    assert names == ["quote"]
    assert caller.get(PATH, endpoint="other", **THEN).results == []


def test_times_are_null_without_a_delivery_that_succeeded() -> None:
    publish(MONDAY)
    times: dict[str, Any] = dict.fromkeys(("p50_ms", "p95_ms", "longest_ms"))
    endpoint_day(MONDAY, timed=0, after_1=0, **times)

    (row,) = program(Scope.REPORTS_READ).get(PATH, **THEN).results

    assert {name: row[name] for name in times} == times


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("from", "soon"),
        ("from", "2026-11-18"),
        ("to", "2026-13-01"),
        ("endpoint", "a\0"),
    ],
)
def test_an_invalid_value_is_a_422_that_names_it(name: str, value: str) -> None:
    reply = program(Scope.REPORTS_READ).get(PATH, **{**THEN, name: value})

    assert (reply.status, reply.pointers) == (422, [f"/{name}"])


def test_the_number_of_queries_does_not_grow_with_days(
    django_assert_max_num_queries: object,
) -> None:
    days = [MONDAY - number * ONE_DAY for number in range(10)]
    publish(*days)
    for day in days:
        for name in "abcde":
            endpoint_day(day, name)
    caller = program(Scope.REPORTS_READ)

    with django_assert_max_num_queries(6):  # type: ignore[operator]
        reply = caller.get(PATH, **{"from": str(min(days)), "to": "2026-11-17"})

    assert len(reply.results) == 50
