"""Planning the reports of the night: missed, late and failed days."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import transaction

from apps.core import advisory_locks
from apps.core.actor import Actor
from apps.core.shared_postgres_snapshot import open_snapshot
from apps.reports.models import Day, Run
from apps.reports.report_run_states import RunState
from apps.reports.services import planning, report_requests
from tests import failure_report_builders
from tests.postgres_connection_limit_and_lock_waits import waits_for_a_lock
from tests.races import on_another_connection
from tests.waiting import wait_until

ANNA = Actor.user("anna")
TODAY = date(2026, 11, 20)
YESTERDAY = TODAY - timedelta(days=1)
AT_TWO = datetime(2026, 11, 20, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)

pytestmark = pytest.mark.django_db(transaction=True)


def ask(first: date, last: date, *, now: datetime = AT_TWO) -> Run:
    return report_requests.request(
        first_day=first, last_day=last, actor=ANNA, source="ui", now=now
    )


def planned(now: datetime = AT_TWO, *, hour: int = 1) -> list[tuple[date, date]]:
    return [(r.first_day, r.last_day) for r in planning.plan(hour=hour, now=now)]


def finish(run: Run, *, now: datetime = AT_TWO) -> None:
    """Finish a run, and publish its days without rates, as of now."""
    with open_snapshot() as snapshot:
        Run.objects.filter(pk=run.pk).update(
            state=RunState.DONE,
            snapshot=snapshot.pg_snapshot,
            as_of=now,
            finished_at=now,
        )
    Day.objects.filter(day__in=planning.days_of(run)).delete()
    for day in planning.days_of(run):
        Day.objects.create(day=day, run=run, rows_in=0, late_rows=0)


def make_all(now: datetime = AT_TWO) -> None:
    for run in planning.plan(hour=1, now=now):
        finish(run, now=now)


def fail(run: Run, *, now: datetime = AT_TWO) -> None:
    Run.objects.filter(pk=run.pk).update(
        state=RunState.FAILED, finished_at=now, trouble="no Java"
    )


def captured(at: datetime, *, now: datetime, **changes: Any) -> None:
    moment = at.isoformat()
    failure_report_builders.capture(
        now,
        failure_report_builders.failure(
            now, failed_at=moment, first_failed_at=moment, **changes
        ),
    )


@pytest.fixture
def something() -> None:
    """Capture a failure of yesterday."""
    at = AT_TWO - timedelta(hours=3)
    captured(at, now=at)


def test_days_before_the_first_event_are_not_planned() -> None:
    captured(AT_TWO, now=AT_TWO)

    assert planned() == []
    assert planned(AT_TWO + timedelta(days=1)) == [(TODAY, TODAY)]


def test_the_night_plans_yesterday_once(something: None) -> None:
    assert planned() == [(YESTERDAY, YESTERDAY)]
    assert planned() == []

    finish(Run.objects.get())

    assert planned() == []


def test_the_night_leaves_out_days_that_another_run_has_just_taken(
    something: None,
) -> None:
    with ThreadPoolExecutor() as pool, transaction.atomic():
        advisory_locks.wait_for("report requests")
        planned_nights = pool.submit(
            on_another_connection, partial(planning.plan, hour=1, now=AT_TWO)
        )
        # The plan has determined the free days, and is about to queue them.
        wait_until(waits_for_a_lock)
        Run.objects.create(
            first_day=YESTERDAY, last_day=YESTERDAY, asked_by="x", asked_at=AT_TWO
        )

    assert planned_nights.result() == []
    assert Run.objects.get().asked_by == "x"


def test_before_its_hour_the_night_does_not_plan_yesterday(
    something: None,
) -> None:
    now = datetime(2026, 11, 20, 4, 30, tzinfo=UTC)

    assert planned(now, hour=5) == []
    assert planned(now, hour=4) == [(YESTERDAY, YESTERDAY)]


def test_missed_nights_are_planned() -> None:
    finish(ask(date(2026, 11, 15), date(2026, 11, 15)))

    assert planned() == [(date(2026, 11, 16), YESTERDAY)]


def test_the_first_night_begins_with_the_first_event() -> None:
    captured(datetime(2026, 11, 12, 23, tzinfo=UTC), now=AT_TWO)

    assert planned() == [(date(2026, 11, 12), YESTERDAY)]


def test_a_late_event_plans_exactly_its_day_again() -> None:
    captured(datetime(2026, 11, 10, 9, tzinfo=UTC), now=AT_TWO - timedelta(days=9))
    make_all(AT_TWO)
    tomorrow = AT_TWO + timedelta(days=1)
    captured(datetime(2026, 11, 14, 23, 59, 59, tzinfo=UTC), now=AT_TWO)

    runs = planned(tomorrow)

    assert runs == [(date(2026, 11, 14), date(2026, 11, 14)), (TODAY, TODAY)]


def test_late_counters_plan_their_day_again(something: None) -> None:
    make_all(AT_TWO)
    minute = "2026-11-19T22:10:00Z"
    counter = failure_report_builders.counter(minute=minute)
    failure_report_builders.count_up(AT_TWO, counter)

    runs = planned(AT_TWO + timedelta(days=1))

    assert runs == [(YESTERDAY, TODAY)]


def test_rows_that_a_run_has_seen_are_not_late() -> None:
    captured(datetime(2026, 11, 18, 9, tzinfo=UTC), now=AT_TWO)
    make_all(AT_TWO)

    assert planned(AT_TWO + timedelta(days=1)) == [(TODAY, TODAY)]


def test_rows_uncommitted_at_the_snapshot_are_late() -> None:
    captured(datetime(2026, 11, 18, 9, tzinfo=UTC), now=AT_TWO)
    runs = planning.plan(hour=1, now=AT_TWO)
    with open_snapshot() as snapshot:
        captured(datetime(2026, 11, 18, 10, tzinfo=UTC), now=AT_TWO)
        for run in runs:
            finish(run)
            Run.objects.filter(pk=run.pk).update(snapshot=snapshot.pg_snapshot)

    assert planned(AT_TWO + timedelta(days=1)) == [
        (date(2026, 11, 18), date(2026, 11, 18)),
        (TODAY, TODAY),
    ]


def test_a_failed_night_is_tried_again_three_times_a_day(something: None) -> None:
    for _ in range(3):
        assert planned() == [(YESTERDAY, YESTERDAY)]
        fail(Run.objects.unfinished().get())

    assert planned() == []
    later = AT_TWO + timedelta(hours=25)
    assert planned(later) == [(YESTERDAY, TODAY)]


def test_a_failed_late_day_is_not_forgotten() -> None:
    captured(datetime(2026, 11, 13, 9, tzinfo=UTC), now=AT_TWO)
    make_all(AT_TWO)
    captured(datetime(2026, 11, 14, 9, tzinfo=UTC), now=AT_TWO)
    tomorrow = AT_TWO + timedelta(days=1)
    late, night = planning.plan(hour=1, now=tomorrow)
    fail(late, now=tomorrow)
    finish(night, now=tomorrow)

    again = planned(tomorrow + timedelta(hours=1))

    assert again == [(late.first_day, late.last_day)]


def test_the_night_checks_for_late_events_even_if_yesterday_is_published() -> None:
    captured(datetime(2026, 11, 14, 9, tzinfo=UTC), now=AT_TWO - timedelta(days=5))
    make_all(AT_TWO - timedelta(days=1))
    captured(datetime(2026, 11, 14, 10, tzinfo=UTC), now=AT_TWO - timedelta(hours=9))
    finish(ask(YESTERDAY, YESTERDAY))

    assert planned() == [
        (date(2026, 11, 14), date(2026, 11, 14)),
        (YESTERDAY, YESTERDAY),
    ]


def test_rows_after_a_restore_are_late_by_their_time(something: None) -> None:
    make_all(AT_TWO)
    # As if Postgres restarted its transaction ids, far below the former ones.
    Run.objects.update(snapshot="9000000000:9000000000:")
    captured(datetime(2026, 11, 19, 23, 50, tzinfo=UTC), now=AT_TWO + HOUR)

    assert planned(AT_TWO + timedelta(days=1)) == [(YESTERDAY, TODAY)]


def test_after_forty_days_without_a_night_no_day_is_missing() -> None:
    first = AT_TWO - timedelta(days=41)
    captured(first - timedelta(hours=9), now=first)
    make_all(first)

    runs = planned()

    assert runs[0][0] == first.date()
    assert runs[-1][1] == YESTERDAY
    assert [(last - day).days for day, last in runs] == [30, 9]


def test_a_failing_day_does_not_hold_back_others() -> None:
    captured(datetime(2026, 11, 18, 9, tzinfo=UTC), now=AT_TWO)
    captured(datetime(2026, 11, 19, 9, tzinfo=UTC), now=AT_TWO)
    assert planned() == [(date(2026, 11, 18), YESTERDAY)]
    fail(Run.objects.unfinished().get())

    again = planned()

    assert again == [
        (date(2026, 11, 18), date(2026, 11, 18)),
        (YESTERDAY, YESTERDAY),
    ]


@pytest.mark.parametrize(
    ("newest", "now", "overdue"),
    [
        (YESTERDAY, datetime(2026, 11, 21, 21, 4, tzinfo=UTC), False),
        (YESTERDAY, datetime(2026, 11, 21, 21, 5, tzinfo=UTC), True),
        (TODAY, datetime(2026, 11, 21, 21, 5, tzinfo=UTC), False),
    ],
)
def test_a_report_is_overdue_an_hour_after_its_hour(
    newest: date, now: datetime, *, overdue: bool
) -> None:
    assert planning.is_overdue(newest, hour=20, now=now) is overdue


def test_ranges_join_consecutive_days() -> None:
    days = [date(2026, 11, n) for n in (3, 1, 2, 7, 9, 10)]

    joined = list(planning.ranges(days))

    assert joined == [
        (date(2026, 11, 1), date(2026, 11, 3)),
        (date(2026, 11, 7), date(2026, 11, 7)),
        (date(2026, 11, 9), date(2026, 11, 10)),
    ]
    assert list(planning.ranges([])) == []
