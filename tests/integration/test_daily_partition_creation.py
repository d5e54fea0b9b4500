"""Partitions: made ahead, made once, and never a reason to refuse a row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from apps.capture import daily_partition_creation
from apps.poison.models import Failure
from tests.failure_report_builders import capture, failure, poisons

pytestmark = pytest.mark.django_db

# Far from any day whose partitions another test or a real lane made here.
NOW = datetime(2031, 5, 5, 12, tzinfo=UTC)
TODAY = NOW.date()


@pytest.fixture
def now() -> datetime:
    return NOW


def home_of_failures() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT tableoid::regclass::text FROM poison_failure")
        return {name for (name,) in cursor.fetchall()}


def test_makes_today_and_the_coming_week_once() -> None:
    names = daily_partition_creation.make(today=TODAY)
    again = daily_partition_creation.make(today=TODAY)
    tomorrow = daily_partition_creation.make(today=TODAY + timedelta(days=1))

    assert (len(names), again, len(tomorrow)) == (24, [], 3)


def test_rows_go_to_the_partition_of_their_capture_day(now: datetime) -> None:
    daily_partition_creation.make(today=TODAY)

    poisons(now, 1)

    assert home_of_failures() == {"poison_failure_20310505"}


def test_a_day_that_began_in_the_default_partition_stays_there(now: datetime) -> None:
    poisons(now, 1)

    names = daily_partition_creation.make(today=TODAY)
    poisons(now, 1)

    assert "poison_failure_20310505" not in names
    assert home_of_failures() == {"poison_failure_default"}


def test_one_report_in_two_days_counts_once(now: datetime) -> None:
    daily_partition_creation.make(today=TODAY)
    report = failure(now)
    capture(now, report)

    (answer,) = capture(now + timedelta(days=1), report)

    assert (answer.status, Failure.objects.count()) == ("duplicate", 1)
