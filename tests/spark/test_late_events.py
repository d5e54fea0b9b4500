"""Whole nights with the real job: what a late event changes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from pytest_django import Settings

from apps.poison.models import Failure
from apps.reports.models import Day, ProblemDay, Rate, Run
from apps.reports.services import next_unfinished_run, planning, report_run_execution
from tests import failure_report_builders
from tests.spark.published_reports_text import published

pytestmark = [pytest.mark.spark, pytest.mark.django_db(transaction=True)]

NOON = datetime(2026, 11, 17, 12, tzinfo=UTC)
AT_TWO = datetime(2026, 11, 20, 2, tzinfo=UTC)
ONE_DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def lake(settings: Settings, tmp_path: Path) -> Path:
    settings.POISONWEB_LAKE = str(tmp_path / "lake")
    return tmp_path / "lake"


def night(now: datetime) -> list[Run]:
    """Plan this night, and make all of its runs."""
    planned = planning.plan(hour=1, now=now)
    while (run_id := next_unfinished_run.next_to_run()) is not None:
        report_run_execution.run(run_id=run_id, clock=lambda: now)
    runs = [Run.objects.get(pk=run.pk) for run in planned]
    assert [run.trouble for run in runs] == [""] * len(runs)
    return runs


def failed(at: datetime, *, now: datetime) -> None:
    moment = at.isoformat()
    failure_report_builders.capture(
        now,
        failure_report_builders.failure(now, failed_at=moment, first_failed_at=moment),
    )


def test_a_night_counts_each_of_the_failures_that_were_folded() -> None:
    attempts = [number % 5 for number in range(400)]
    members = [
        {**report, "attempts": attempts[number]}
        for number, report in enumerate(
            failure_report_builders.repeats(NOON, len(attempts))
        )
    ]
    for first in range(0, len(members), 150):
        failure_report_builders.capture(NOON, *members[first : first + 150])
    assert Failure.objects.count() == 101

    night(AT_TWO)

    hours = Rate.objects.filter(day=NOON.date()).by_hour().of_all_groups()
    retried = sum(max(number - 1, 0) for number in attempts)
    assert list(hours.values_list("hour", "failed", "poisoned", "uncounted")) == [
        (12, 400, 1, 400)
    ]
    problems = ProblemDay.objects.values_list("failed", "retried")
    assert list(problems) == [(400, retried)]


def by_day(day: date) -> str:
    """Return the published rows of a day, and its run."""
    return f"{Day.objects.get(day=day).run_id}\n{published(day)}"


def test_a_late_event_changes_exactly_its_day() -> None:
    for days in range(3):
        at = NOON + days * ONE_DAY
        failed(at, now=at)
        failure_report_builders.count_up(
            at, failure_report_builders.counter(minute=at.isoformat())
        )
    (run,) = night(AT_TWO)
    thursday, others = date(2026, 11, 19), (date(2026, 11, 17), date(2026, 11, 18))
    before = {day: by_day(day) for day in others}
    failed(NOON + 2 * ONE_DAY + timedelta(hours=3), now=AT_TWO)

    (tonight,) = night(AT_TWO + ONE_DAY)

    assert (run.rows_in, run.late_rows) == (6, 0)
    assert (tonight.first_day, tonight.last_day) == (thursday, date(2026, 11, 20))
    assert (tonight.rows_in, tonight.late_rows) == (3, 1)
    assert {day: by_day(day) for day in others} == before
    hours = Rate.objects.filter(day=thursday).by_hour().of_all_groups()
    assert sorted(hours.values_list("hour", "poisoned", "delivered")) == [
        (12, 1, 12),
        (15, 1, 0),
    ]
    # A day without events is published too: it is no gap.
    assert Day.objects.get(day=date(2026, 11, 20)).rows_in == 0
    assert not Rate.objects.filter(day=date(2026, 11, 20)).exists()
