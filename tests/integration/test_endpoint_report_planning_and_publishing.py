"""Days of endpoints: checked, published, made again, and planned."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection

from apps.brokers.models import Topic
from apps.capture import unused_topic_removal
from apps.capture.unused_topic_removal import RecordsExist
from apps.core import shared_postgres_snapshot
from apps.core.actor import Actor
from apps.core.shared_postgres_snapshot import Snapshot
from apps.redelivery.models import Endpoint
from apps.redelivery.services.endpoints import remove_endpoint
from apps.reports.errors import Unreconciled
from apps.reports.models import Day, EndpointDay, Run
from apps.reports.services import (
    planning,
    publishing,
    report_requests,
    staged_data_checks,
)
from apps.reports.services.publishing import DayRows
from apps.team.rights import Principal
from tests.ended_deliveries import calls, delivery
from tests.integration.redelivery.endpoint_and_delivery_builders import ADMIN, endpoint
from tests.integration.test_report_publishing import insert

pytestmark = pytest.mark.django_db(transaction=True)

DAY = date(2026, 11, 19)
NOON = datetime(2026, 11, 19, 12, tzinfo=UTC)
AT_TWO = datetime(2026, 11, 20, 2, tzinfo=UTC)
ONE_DAY = timedelta(days=1)
READ = {
    **dict.fromkeys(("failures", "counters", "decisions"), 0),
    "calls": 1,
    "deliveries": 6,
    "backlogs": 1,
}
# What the fixture `quote` did: by hand.
STAGED = {
    "calls": 105,
    "succeeded_at_first": 90,
    "after_1": 1,
    **dict.fromkeys(("after_2", "after_3", "after_4_to_10", "after_more"), 0),
    "given_up": 2,
    "dropped": 1,
    "forwarded": 1,
    "unknown": 1,
    "waiting": 3,
    "timed": 2,
    "p50_ms": 3000,
    "p95_ms": 3000,
    "longest_ms": 3000,
}


@pytest.fixture
def quote() -> Endpoint:
    """An endpoint with 105 calls, six deliveries that ended, and three that wait."""
    quote = endpoint("quote")
    calls(quote, NOON, succeeded_at_first=90, succeeded_later=1, failed=14)
    delivery(quote, "delivered", NOON, attempts=1)  # one of the 90
    delivery(quote, "delivered", NOON)
    delivery(quote, "given_up", NOON, cause="exhausted")
    delivery(quote, "given_up", NOON, cause="unknown")
    delivery(quote, "dropped", NOON)
    delivery(quote, "forwarded", NOON)
    delivery(quote, "waiting", NOON)
    delivery(quote, "forwarding", NOON - 9 * ONE_DAY)
    # It ended, but on the next day.
    delivery(quote, "delivered", NOON + ONE_DAY, took=ONE_DAY)
    delivery(quote, "waiting", NOON + ONE_DAY)
    return quote


@pytest.fixture
def run(quote: Endpoint) -> Run:
    return begun()


@pytest.fixture
def run_snapshot(run: Run) -> Iterator[Snapshot]:
    with shared_postgres_snapshot.open_snapshot() as snapshot:
        Run.objects.filter(pk=run.pk).update(
            snapshot=snapshot.pg_snapshot, as_of=AT_TWO
        )
        yield snapshot


def begun(day: date = DAY, *, as_of: datetime = AT_TWO) -> Run:
    run = report_requests.queue(
        first_day=day, last_day=day, actor=Actor.user("anna"), now=as_of
    )
    Run.objects.filter(pk=run.pk).update(
        state="running", epoch=1, started_at=as_of, as_of=as_of, snapshot="1:1:"
    )
    return Run.objects.get(pk=run.pk)


def stage(run: Run, **changes: Any) -> None:
    row = {
        "run_id": run.pk,
        "epoch": run.epoch,
        "day": DAY,
        "topic": "gateway/quote",
        "endpoint": "quote",
        **STAGED,
    }
    insert("reports_staged_endpoint", {**row, **changes})


def check(run: Run, snapshot: Snapshot) -> dict[date, DayRows]:
    return staged_data_checks.check(run=run, snapshot=snapshot, rows_read=READ)


def publish(run: Run, day: date = DAY) -> None:
    publishing.publish(
        run=run,
        rows={day: DayRows(total=8, late=0)},
        staged=publishing.count_staged(run),
        now=AT_TWO,
    )


def publish_day(day: date = DAY, *, as_of: datetime = AT_TWO, **changes: Any) -> None:
    """Publish a day of the endpoint without the check."""
    run = begun(day, as_of=as_of)
    stage(run, day=day, **changes)
    publish(run, day)


def test_staged_endpoints_that_agree_with_postgres_pass(
    run: Run, run_snapshot: Snapshot
) -> None:
    stage(run)

    assert check(run, run_snapshot) == {DAY: DayRows(total=8, late=0)}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"calls": 104}, "gateway/quote calls is 104, Postgres has 105"),
        ({"succeeded_at_first": 91}, "gateway/quote succeeded_at_first is 91, Postgre"),
        ({"after_1": 0}, "gateway/quote ended is 4, Postgres has 5"),
        ({"after_2": 1}, "gateway/quote ended is 6, Postgres has 5"),
        ({"given_up": 1, "dropped": 2}, "gateway/quote dropped is 2, Postgres has 1"),
        ({"forwarded": 0}, "gateway/quote forwarded is 0, Postgres has 1"),
        ({"unknown": 2}, "gateway/quote unknown is 2, Postgres has 1"),
        ({"waiting": 4}, "gateway/quote waiting is 4, Postgres has 3"),
        ({"timed": 3}, "gateway/quote timed is 3, Postgres has 2"),
        ({"endpoint": "q", "p50_ms": 3001}, "impossible numbers: 2026-11-19 q"),
        ({"endpoint": "q", "longest_ms": None}, "impossible numbers: 2026-11-19 q"),
        ({"topic": "gateway/other"}, "gateway/other calls is 105, Postgres has 0"),
        ({"day": DAY + ONE_DAY}, "2026-11-19 gateway/quote calls is 0, Postgres has 1"),
    ],
)
def test_a_number_of_an_endpoint_that_differs_is_named(
    run: Run, run_snapshot: Snapshot, changes: dict[str, Any], complaint: str
) -> None:
    stage(run, **changes)

    with pytest.raises(Unreconciled) as raised:
        check(run, run_snapshot)

    assert complaint in str(raised.value)


def test_an_endpoint_that_was_not_staged_is_named(
    run: Run, run_snapshot: Snapshot
) -> None:
    with pytest.raises(Unreconciled, match="gateway/quote calls is 0, Postgres has 1"):
        check(run, run_snapshot)


def test_a_job_that_read_too_few_deliveries_is_detected(
    run: Run, run_snapshot: Snapshot
) -> None:
    stage(run)

    with pytest.raises(Unreconciled, match="rows read: deliveries is 5, Postgres has"):
        staged_data_checks.check(
            run=run, snapshot=run_snapshot, rows_read={**READ, "deliveries": 5}
        )


def test_a_day_of_an_endpoint_is_published_with_its_day(
    run: Run, run_snapshot: Snapshot, quote: Endpoint
) -> None:
    stage(run)

    publish(Run.objects.get(pk=run.pk))

    row = EndpointDay.objects.get()
    assert Day.objects.get().counts_endpoints is True
    assert (row.day_id, row.topic_id, row.endpoint) == (DAY, quote.topic_id, "quote")
    assert {name: getattr(row, name) for name in STAGED} == STAGED
    assert (row.succeeded_later, row.is_partial) == (1, False)
    assert publishing.count_staged(run) == 0


def test_a_day_made_again_replaces_its_endpoints(quote: Endpoint) -> None:
    publish_day(waiting=9)

    publish_day(waiting=4)

    assert [row.waiting for row in EndpointDay.objects.all()] == [4]


@pytest.mark.parametrize(
    ("retention", "days", "is_partial"),
    [(None, 30, False), (None, 31, True), (1, 2, False), (1, 3, True), (7, 8, True)],
)
def test_a_day_made_after_its_deliveries_may_be_deleted_says_so(
    quote: Endpoint, retention: int | None, days: int, *, is_partial: bool
) -> None:
    Topic.objects.filter(endpoint=quote).update(retention_days=retention)
    midnight = datetime(2026, 11, 19, tzinfo=UTC)

    publish_day(as_of=midnight + days * ONE_DAY)

    assert EndpointDay.objects.get().is_partial is is_partial


def test_a_day_made_again_without_its_deliveries_stays_as_it_was(
    quote: Endpoint,
) -> None:
    publish_day()
    much_later = AT_TWO + 40 * ONE_DAY

    publish_day(as_of=much_later, given_up=0, unknown=0)
    publish(begun(as_of=much_later))  # a run that found nothing of the day

    row = EndpointDay.objects.get()
    assert (row.given_up, row.is_partial) == (2, False)
    assert row.day.run_id == Run.objects.latest("pk").pk


def test_a_removed_endpoint_stays_in_its_days_and_blocks_its_topic(
    operator: Principal,
) -> None:
    removed = endpoint("quote")
    calls(removed, NOON, succeeded_at_first=90, failed=17)
    topic_id = removed.topic_id
    publish_day(calls=107)
    remove_endpoint(name="quote", principal=ADMIN, now=AT_TWO)

    publish(begun())

    assert EndpointDay.objects.get().calls == 107
    with pytest.raises(RecordsExist, match="gateway/quote \\(reports\\)"):
        unused_topic_removal.remove_topics(
            topics=[topic_id], principal=operator, now=AT_TWO
        )


def test_an_endpoint_and_topic_removed_during_the_run_are_left_out() -> None:
    removed = endpoint("quote")
    calls(removed, NOON, succeeded_at_first=90, failed=15)
    run = begun()
    with shared_postgres_snapshot.open_snapshot() as snapshot:
        stage(run, **dict.fromkeys(STAGED, 0) | NO_TIMES | {"calls": 105})
        remove_endpoint(name="quote", principal=ADMIN, now=AT_TWO)
        Topic.objects.get(name="gateway/quote").delete()

        publishing.delete_removed_topics(run, snapshot)
        staged_data_checks.check(
            run=run, snapshot=snapshot, rows_read=dict.fromkeys(READ, 0) | {"calls": 1}
        )
    publish(run)

    assert not EndpointDay.objects.exists()


NO_TIMES = dict.fromkeys(("p50_ms", "p95_ms", "longest_ms"))


@pytest.mark.parametrize(
    ("changes", "constraint"),
    [
        ({"dropped": -1}, "reports_endpoint_day_is_not_negative"),
        ({"unknown": 5}, "reports_endpoint_day_has_parts"),
        ({"succeeded_at_first": 106}, "reports_endpoint_day_has_parts"),
        ({"after_more": 2}, "reports_endpoint_day_has_parts"),
        ({"longest_ms": 1}, "reports_endpoint_day_has_times"),
        ({"timed": 0, "after_1": 0}, "reports_endpoint_day_has_times"),
    ],
)
def test_postgres_refuses_numbers_that_contradict_each_other(
    quote: Endpoint, changes: dict[str, Any], constraint: str
) -> None:
    run = begun()
    stage(run, **changes)

    with pytest.raises(IntegrityError, match=constraint):
        publish(run)

    assert not Day.objects.exists()


def planned(now: datetime = AT_TWO) -> list[tuple[date, date]]:
    return [(r.first_day, r.last_day) for r in planning.plan(hour=1, now=now)]


def finish_all() -> None:
    """Finish the planned runs; their days have no endpoint yet."""
    for run in Run.objects.unfinished():
        Run.objects.filter(pk=run.pk).update(
            state="done", as_of=AT_TWO, finished_at=AT_TWO, snapshot="9:9:"
        )
        Day.objects.bulk_create(
            Day(day=day, run=run, rows_in=0, late_rows=0, counts_endpoints=True)
            for day in planning.days_of(run)
        )


@pytest.mark.parametrize("has_calls", [True, False])
def test_an_installation_that_only_has_endpoints_gets_its_nights(
    *, has_calls: bool
) -> None:
    quote = endpoint("quote")
    if has_calls:
        calls(quote, NOON - ONE_DAY, failed=1)
    else:
        delivery(quote, "forwarded", NOON - ONE_DAY)

    assert planned() == [(DAY - ONE_DAY, DAY)]


@pytest.mark.parametrize("has_calls", [True, False])
def test_a_late_call_or_end_plans_exactly_its_day_again(*, has_calls: bool) -> None:
    quote = endpoint("quote")
    calls(quote, NOON - 3 * ONE_DAY, failed=2)
    planned()
    finish_all()
    day = Day.objects.get(day=DAY - 3 * ONE_DAY)
    counts = dict.fromkeys(STAGED, 0) | NO_TIMES | {"calls": 2}
    EndpointDay.objects.create(
        day=day, topic=quote.topic, endpoint="quote", is_partial=False, **counts
    )
    tomorrow = AT_TWO + ONE_DAY
    late = NOON - 2 * ONE_DAY
    if has_calls:
        calls(quote, late, failed=1)
    else:
        delivery(quote, "forwarded", late)

    assert planned(tomorrow) == [
        (late.date(), late.date()),
        (DAY + ONE_DAY, DAY + ONE_DAY),
    ]


def test_a_day_whose_deliveries_may_be_deleted_is_not_compared() -> None:
    quote = endpoint("quote")
    Topic.objects.filter(endpoint=quote).update(retention_days=1)
    calls(quote, NOON - 3 * ONE_DAY, failed=2)
    planned()
    finish_all()

    assert planned(AT_TWO + ONE_DAY) == [(DAY + ONE_DAY, DAY + ONE_DAY)]


def test_days_published_before_endpoints_were_counted_are_made_again() -> None:
    quote = endpoint("quote")
    Topic.objects.filter(endpoint=quote).update(retention_days=1)
    calls(quote, NOON - 3 * ONE_DAY, failed=2)
    planned()
    finish_all()
    # As the release before published them.
    with connection.cursor() as cursor:
        cursor.execute("UPDATE reports_day SET counts_endpoints = DEFAULT")

    assert planned(AT_TWO + ONE_DAY) == [
        (DAY - 3 * ONE_DAY, DAY - 3 * ONE_DAY),
        (DAY + ONE_DAY, DAY + ONE_DAY),
    ]
