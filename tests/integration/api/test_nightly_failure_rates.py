"""Failure rates and runs over the API."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.brokers.models import Broker, Topic
from apps.core import clock
from apps.reports.services.report_requests import newest_over
from apps.team.rights import Role, Scope
from tests.integration.api.schema_checking_client import (
    Caller,
    Reply,
    anonymous,
    person,
    program,
)
from tests.published_reports import ONE_DAY, failed_run, publish, rate, run

pytestmark = pytest.mark.django_db

PATH = "reports/failure-rates"
MONDAY, TUESDAY = date(2026, 11, 16), date(2026, 11, 17)
THEN = {"from": "2026-11-16", "to": "2026-11-17"}


@pytest.fixture
def caller() -> Caller:
    return program(Scope.REPORTS_READ)


def every(caller: Caller, limit: int, **query: object) -> list[Reply]:
    """Read one page after the other."""
    pages = [caller.get(PATH, limit=limit, **query)]
    while cursor := pages[-1].json["next"]:
        pages.append(caller.get(PATH, limit=limit, cursor=cursor, **query))
    return pages


def test_a_rate_has_its_source_its_interval_and_its_run(
    caller: Caller,
) -> None:
    (day,) = publish(MONDAY)
    rate(MONDAY, 200, 3, uncounted=1, skipped=4, p95_ms=512)

    (row,) = caller.get(PATH, **THEN).results

    assert row == {
        "day": "2026-11-16",
        "hour": None,
        "topic": "orders",
        "sample": False,
        "consumer_group": None,
        "source": "sdk",
        "delivered": 200,
        "failed": 3,
        "uncounted": 1,
        "poisoned": 0,
        "skipped": 4,
        "retried": 0,
        "redriven": 0,
        "confirmed": 0,
        "recurred": 0,
        "dropped": 0,
        "failure_rate": 0.01,
        "interval": {"low": 0.005, "high": 0.02},
        "p50_ms": 16,
        "p95_ms": 512,
        "p99_ms": None,
        "run": day.run_id,
    }


def test_a_rate_without_delivered_messages_is_null(caller: Caller) -> None:
    publish(MONDAY)
    rate(MONDAY, None, 3)

    (row,) = caller.get(PATH, **THEN).results

    assert (row["source"], row["delivered"]) == ("none", None)
    assert (row["failure_rate"], row["interval"]) == (None, None)


def test_rates_of_the_sample_are_marked(caller: Caller) -> None:
    publish(MONDAY)
    rate(MONDAY, 10, 1)
    broker = Broker.objects.create(name="sample", kind="redis_streams", is_sample=True)
    Topic.objects.update(broker=broker)

    assert caller.get(PATH, **THEN).results[0]["sample"] is True


@pytest.mark.parametrize(
    ("query", "failed"),
    [
        ({}, [1]),
        ({"consumer_group": "billing"}, [2]),
        ({"consumer_group": ""}, [3]),
        ({"by": "hour"}, [4]),
        ({"by": "hour", "consumer_group": "billing"}, [5]),
        ({"topic": "orders"}, [1]),
        ({"topic": "ORDERS"}, []),
        ({"consumer_group": "shipping"}, []),
    ],
)
def test_each_granularity_and_group_is_listed_separately(
    caller: Caller, query: dict[str, str], failed: list[int]
) -> None:
    publish(MONDAY)
    rate(MONDAY, 10, 1)
    rate(MONDAY, 10, 2, consumer_group="billing")
    rate(MONDAY, 10, 3, consumer_group="")
    rate(MONDAY, 10, 4, hour=13)
    rate(MONDAY, 10, 5, hour=13, consumer_group="billing")

    rows = caller.get(PATH, **THEN, **query).results

    assert [row["failed"] for row in rows] == failed


@pytest.mark.parametrize("by", ["day", "hour"])
def test_the_pages_hold_every_rate_once_the_newest_first(
    caller: Caller, by: str
) -> None:
    publish(MONDAY, TUESDAY)
    for day in (MONDAY, TUESDAY):
        for topic in ("a", "b", "c"):
            for hour in (0, 23) if by == "hour" else (None,):
                rate(day, 10, 1, topic=topic, hour=hour)

    pages = every(caller, 2, by=by, **THEN)

    rows = [
        (row["day"], -(row["hour"] or 0), row["topic"])
        for page in pages
        for row in page.results
    ]
    assert len(set(rows)) == len(rows) == (12 if by == "hour" else 6)
    assert rows == sorted(rows, key=lambda row: (_back(row[0]), row[1], row[2]))


def _back(day: str) -> int:
    return -date.fromisoformat(day).toordinal()


def test_a_day_published_again_between_two_pages_is_not_lost(
    caller: Caller,
) -> None:
    publish(MONDAY)
    topics = ["a", "b", "c"]
    old = [rate(MONDAY, 10, 1, topic=topic) for topic in topics]
    first = caller.get(PATH, limit=1, **THEN)

    for row in old:
        row.delete()
    for topic in reversed(topics):
        rate(MONDAY, 10, 2, topic=topic)
    rest = caller.get(PATH, cursor=first.json["next"], **THEN)

    assert [row["topic"] for row in rest.results] == ["b", "c"]


def test_without_a_period_the_last_four_weeks_are_listed(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now)
    newest = newest_over(now)
    inside, outside = newest - 27 * ONE_DAY, newest - 28 * ONE_DAY
    publish(newest, inside, outside)
    for day in (newest, inside, outside):
        rate(day, 10, 1)

    days = [row["day"] for row in caller.get(PATH).results]

    assert days == [str(newest), str(inside)]


def test_a_key_sees_its_own_topics() -> None:
    publish(MONDAY)
    rate(MONDAY, 10, 1, topic="orders.eu")
    rate(MONDAY, 10, 1, topic="payments")
    caller = program(Scope.REPORTS_READ, topics=["orders.*"])

    topics = [row["topic"] for row in caller.get(PATH, **THEN).results]
    other = caller.get(PATH, topic="payments", **THEN).results

    assert (topics, other) == (["orders.eu"], [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("from", "soon"),
        ("from", "2026-11-18"),
        ("to", "2026-13-01"),
        ("to", "2026-11-17T00:00"),
        ("by", "week"),
        ("by", ""),
        ("topic", "a\0"),
        ("consumer_group", "a\0"),
        ("topic", "x" * 300),
    ],
)
def test_an_invalid_value_is_a_422_that_names_it(
    caller: Caller, name: str, value: str
) -> None:
    reply = caller.get(PATH, **{**THEN, name: value})

    assert (reply.status, reply.pointers) == (422, [f"/{name}"])


def test_any_day_of_the_calendar_is_accepted(caller: Caller) -> None:
    for query in ({"to": "0001-01-01"}, {"from": "0001-01-01", "to": "9999-12-31"}):
        assert caller.get(PATH, **query).results == []


def test_the_runs_are_listed_newest_first_and_paged(caller: Caller) -> None:
    runs = [run(MONDAY), failed_run(TUESDAY), run(MONDAY, TUESDAY)]

    first = caller.get("reports/runs", limit=2)
    rest = caller.get("reports/runs", cursor=first.json["next"])

    rows = [*first.results, *rest.results]
    assert [row["id"] for row in rows] == [row.pk for row in reversed(runs)]
    assert rows[0] == {
        "id": runs[2].pk,
        "state": "done",
        "from": "2026-11-16",
        "to": "2026-11-17",
        "asked_by": "system:nightly",
        "asked_at": "2026-11-18T01:00:00Z",
        "started_at": "2026-11-18T01:00:00Z",
        "as_of": "2026-11-18T01:00:00Z",
        "finished_at": "2026-11-18T01:00:09Z",
        "seconds": 9.0,
        "rows_in": 100,
        "late_rows": 2,
        "trouble": "",
    }
    assert (rows[1]["state"], rows[1]["trouble"]) == ("failed", "The job broke.")


def test_a_running_run_has_no_duration(caller: Caller) -> None:
    run(MONDAY, state="running", finished_at=None)

    assert caller.get("reports/runs").results[0]["seconds"] is None


def test_a_key_for_some_topics_does_not_see_the_trouble_of_a_run() -> None:
    failed_run(MONDAY)

    reply = program(Scope.REPORTS_READ, topics=["orders"]).get("reports/runs")

    assert reply.results[0]["trouble"] is None


@pytest.mark.parametrize("path", [PATH, "reports/runs"])
def test_who_may_read_reports(path: str) -> None:
    askers = [person(Role.VIEWER), program(Scope.REPORTS_WRITE), anonymous()]

    assert [asker.get(path).status for asker in askers] == [200, 403, 401]


@pytest.mark.parametrize("path", [PATH, "reports/runs"])
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    query=st.dictionaries(
        st.sampled_from(
            ["topic", "from", "to", "by", "consumer_group", "cursor", "limit", "x"]
        ),
        st.text(st.characters(codec="utf-8"), max_size=20)
        | st.dates().map(str)
        | st.sampled_from(["day", "hour", "9" * 30, "\0", "\u202e", "%_\\"]),
    )
)
def test_any_parameters_are_answered(
    caller: Caller, path: str, query: dict[str, str]
) -> None:
    assert caller.get(path, **query).status < 500


def test_the_number_of_queries_does_not_grow_with_rates(
    caller: Caller, django_assert_max_num_queries: object
) -> None:
    days = [MONDAY - number * timedelta(days=1) for number in range(10)]
    publish(*days)
    for day in days:
        for topic in "abcde":
            rate(day, 10, 1, topic=topic)

    with django_assert_max_num_queries(6):  # type: ignore[operator]
        reply = caller.get(PATH, **{"from": str(min(days)), "to": "2026-11-17"})

    assert len(reply.results) == 50
