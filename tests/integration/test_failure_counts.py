"""Failures are counted by ten minutes as they are stored, and checked every night."""

from __future__ import annotations

import importlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, transaction

from apps.capture.tasks import gather_counts
from apps.core import clock
from apps.dashboard.selectors import problems
from apps.poison import failure_hours
from apps.poison.models import (
    Failure,
    FailureCount,
    FailureCountChange,
    PoisonCountCheck,
    Problem,
)
from apps.poison.models.counts import ALL_PROBLEMS
from apps.poison.services import counts, failure_count_gathering
from apps.poison.services.failure_count_gathering import WrongFailureCount
from tests.failure_report_builders import capture, failure, poisons, repeats
from tests.races import at_once, beside_writers

pytestmark = pytest.mark.django_db(transaction=True)

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
DAY = timedelta(days=1)
KEEPING: Any = importlib.import_module(
    "apps.poison.migrations.0019_failure_counts_by_triggers"
)
FULL_COUNT = """
SELECT problem_id, to_timestamp(floor(extract(epoch FROM failed_at) / 600) * 600),
       sum(times)
FROM poison_failure GROUP BY 1, 2
"""
KEPT = """
SELECT problem_id, begins_at, sum(number) FROM (
    SELECT problem_id, begins_at, number FROM poison_failure_count WHERE problem_id > 0
    UNION ALL SELECT problem_id, begins_at, number FROM poison_failure_count_change
) one GROUP BY 1, 2 HAVING sum(number) <> 0
"""
Numbers = dict[tuple[int, datetime], int]


def numbers(statement: str) -> Numbers:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return {(pk, at.astimezone(UTC)): int(n) for pk, at, n in cursor.fetchall()}


def by_topic() -> Numbers:
    """Sum the gathered counts of problems by topic."""
    topics = dict(Problem.objects.values_list("pk", "topic_id"))
    summed = Counter[tuple[int, datetime]]()
    for each in FailureCount.objects.exclude(problem_id=ALL_PROBLEMS):
        summed[topics[each.problem_id], each.begins_at] += each.number
    return dict(summed)


def of_topics() -> Numbers:
    rows = FailureCount.objects.filter(problem_id=ALL_PROBLEMS)
    return {(row.topic_id, row.begins_at): row.number for row in rows}


def broken(name: str) -> dict[str, str]:
    return {"type": name, "message": "", "traceback": ""}


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def test_failures_are_counted_in_whatever_way_they_are_stored(now: datetime) -> None:
    # New messages together, of two problems and two topics; one that is known, alone
    # and with others; repeats, which are folded; and a failure that is told late.
    capture(
        now,
        *(failure(now, exception=broken(f"E{n}"), topic=f"t{n}") for n in (0, 1)),
        *(failure(now, exception=broken("E2"), topic="t1") for _ in range(3)),
    )
    capture(now, failure(now, bookmark="1-0"))
    capture(now, failure(now, bookmark="1-0"))
    capture(now, failure(now, bookmark="1-0"), failure(now, bookmark="2-0"))
    often = repeats(now, 160, bookmark="3-0")
    capture(now, *often[:130])
    for report in often[130:]:
        capture(now, report)
    capture(now, failure(now - 3 * HOUR, bookmark="1-0"))
    by_triggers = numbers(KEPT)

    gather_counts()

    there = numbers(FULL_COUNT)
    assert sum(there.values()) == 2 + 3 + 4 + 160 + 1
    assert by_triggers == numbers(KEPT) == there
    assert not FailureCountChange.objects.exists()
    assert of_topics() == by_topic()
    assert Failure.objects.filter(times__gt=1).exists()
    assert failure_count_gathering.mend(now=now) == []


def test_failures_that_are_deleted_are_not_counted_any_more(now: datetime) -> None:
    (deleted, _) = poisons(now, 2)
    gather_counts()

    execute(f"DELETE FROM poison_failure WHERE poison_id = {deleted.pk}")
    before = numbers(KEPT)
    gather_counts()

    assert before == numbers(KEPT) == numbers(FULL_COUNT)
    assert set(of_topics().values()) == {1}


def test_what_is_not_gathered_counts_as_well_for_problem_and_topic(
    now: datetime,
) -> None:
    (first, *_) = poisons(now - 2 * HOUR, 2)
    gather_counts()
    (other,) = poisons(now - 2 * HOUR, 1, exception=broken("Other"))
    capture(now, failure(now))

    hours = failure_hours.count(
        problems=[first.problem_id, other.problem_id], topics=[first.topic_id], now=now
    )
    gather_counts()
    gathered = failure_hours.count(
        problems=[first.problem_id, other.problem_id], topics=[first.topic_id], now=now
    )

    assert hours == gathered
    assert sum(hours.by_problem[first.problem_id]) == 3
    assert sum(hours.by_problem[other.problem_id]) == 1
    assert hours.by_topic[first.topic_id][-1] == 1
    assert sum(hours.by_topic[first.topic_id]) == 4


@pytest.mark.parametrize("is_gathered", [True, False])
def test_the_hours_end_with_the_ten_minutes_that_run_now(is_gathered: bool) -> None:
    now = datetime(2026, 11, 20, 10, 27, 31, tzinfo=UTC)
    until = datetime(2026, 11, 20, 10, 30, tzinfo=UTC)
    tick = timedelta(microseconds=1)
    moments = {
        until - DAY - tick: None,
        until - DAY: 0,
        until - 23 * HOUR - tick: 0,
        until - 23 * HOUR: 1,
        until - HOUR - tick: 22,
        until - HOUR: 23,
        now: 23,
        until - tick: 23,
        until: None,
    }
    # A failure is of its time, whenever it is captured.
    capture(until, *(failure(moment) for moment in moments))
    Failure.objects.exclude(failed_at_claimed=None).delete()
    if is_gathered:
        gather_counts()
    problem = Problem.objects.get()

    hours = failure_hours.count(
        problems=[problem.pk], topics=[problem.topic_id], now=now
    )

    expected = [0] * failure_hours.HOURS
    for place in moments.values():
        if place is not None:
            expected[place] += 1
    assert hours.by_problem[problem.pk] == hours.by_topic[problem.topic_id] == expected


def test_a_moment_on_the_border_is_of_the_ten_minutes_that_begin() -> None:
    border = datetime(2026, 11, 20, 10, 30, tzinfo=UTC)

    assert failure_hours.slice_of(border) == border
    assert failure_hours.slice_of(border - timedelta(microseconds=1)) == (
        border - 10 * MINUTE
    )


def test_a_page_of_problems_sums_up_to_that_of_their_topic(now: datetime) -> None:
    for age in (0, 5, 23):
        poisons(now - age * HOUR, 2, exception=broken(f"E{age}"))
    listed = list(Problem.objects.all())

    rows = problems.rows(listed, now=now)
    hours = failure_hours.count(topics=[listed[0].topic_id], now=now)

    assert sum(hours.by_topic[listed[0].topic_id]) == 6
    assert hours.by_topic[listed[0].topic_id] == [
        sum(row.hours[place] for row in rows if isinstance(row.hours, list))
        for place in range(failure_hours.HOURS)
    ]


def test_many_writers_at_once_never_wait_in_a_circle_and_count_right(
    now: datetime,
) -> None:
    until = time.monotonic() + 3
    captured: list[int] = []

    def report() -> None:
        some = [failure(now, consumer_group=f"{n % 3}") for n in range(10)]
        random.shuffle(some)
        captured.append(len(capture(now, *some)))

    def repeat() -> None:
        bookmark = f"{random.randrange(4)}-0"
        captured.append(len(capture(now, failure(now, bookmark=bookmark))))

    def undo() -> None:
        with transaction.atomic():
            capture(now, failure(now))
            transaction.set_rollback(True)

    def gather() -> None:
        failure_count_gathering.gather()

    def check() -> None:
        assert failure_count_gathering.mend(now=now) == []

    jobs = [report] * 4 + [repeat] * 4 + [undo, gather, gather, check]
    at_once(*(again_until(until, job) for job in jobs))

    assert numbers(KEPT) == numbers(FULL_COUNT)
    assert sum(numbers(KEPT).values()) == sum(captured)
    failure_count_gathering.gather()
    assert of_topics() == by_topic()


def again_until(until: float, job: Callable[[], None]) -> Callable[[], None]:
    def work() -> None:
        while time.monotonic() < until:
            job()

    return work


def test_the_nightly_check_mends_wrong_counts_and_says_so(now: datetime) -> None:
    (message, *_) = poisons(now, 3)
    problem, topic = message.problem_id, message.topic_id
    begins_at = failure_hours.slice_of(now)
    failure_count_gathering.gather()
    poisons(now, 2)
    FailureCount.objects.filter(problem_id=problem).update(number=1)
    FailureCount.objects.filter(problem_id=ALL_PROBLEMS).update(number=9)

    wrong = counts.check(now=now)

    assert wrong == [
        WrongFailureCount(ALL_PROBLEMS, topic, begins_at, -6, 9),
        WrongFailureCount(problem, topic, begins_at, 2, 1),
    ]
    stored = PoisonCountCheck.objects.get()
    at = f"{begins_at:%Y-%m-%d %H:%M}"
    assert stored.wrong == 2
    assert stored.detail == (
        f"topic {topic} in the ten minutes from {at} UTC: 9 failures instead of 3; "
        f"problem {problem} on topic {topic} in the ten minutes from {at} UTC: "
        "1 failures instead of 3"
    )
    assert numbers(KEPT) == numbers(FULL_COUNT)
    failure_count_gathering.gather()
    assert of_topics() == by_topic()
    assert counts.check(now=now) == []


def test_the_check_forgets_counts_that_no_page_shows(now: datetime) -> None:
    poisons(now - 2 * DAY, 1)
    poisons(now - 23 * HOUR, 1)
    failure_count_gathering.gather()

    assert counts.check(now=now) == []

    rows = FailureCount.objects.values_list("begins_at", "number").distinct()
    assert list(rows) == [(failure_hours.slice_of(now - 23 * HOUR), 1)]


@contextmanager
def as_before_the_upgrade() -> Iterator[None]:
    """Take the triggers and what they counted away; they are there again afterwards."""
    with connection.schema_editor(atomic=False) as editor:
        KEEPING.forget(apps, editor)
    execute("DELETE FROM poison_failure_count_change")
    try:
        yield
    finally:
        with connection.schema_editor(atomic=False) as editor:
            KEEPING.keep(apps, editor)


def test_counts_begin_right_although_others_write_during_the_upgrade() -> None:
    # An upgrade goes by the clock of Postgres.
    now = clock.now()
    count = KEEPING.count
    poisons(now - 23 * HOUR, 20)
    often = repeats(now, 120, bookmark="1-0")
    capture(now, *often)
    with as_before_the_upgrade():

        def write() -> None:
            capture(now, failure(now, consumer_group=f"{random.randrange(3)}"))
            capture(now, failure(now, bookmark="1-0"))

        def upgrade(await_writers: Callable[[], None]) -> None:
            def count_beside_writers(cursor: Any, *statement: str) -> None:
                count(cursor, *statement)
                await_writers()

            with (
                pytest.MonkeyPatch.context() as patch,
                connection.schema_editor(atomic=False) as editor,
            ):
                patch.setattr(KEEPING, "count", count_beside_writers)
                KEEPING.keep(apps, editor)

        beside_writers(write, upgrade)
        # The block would count once more at its end.
        by_triggers = numbers(KEPT)
        there = numbers(FULL_COUNT)

    assert by_triggers == there


def test_an_upgrade_that_was_killed_can_begin_again() -> None:
    now = clock.now()
    poisons(now, 4)
    failure_count_gathering.gather()
    poisons(now, 3)

    with as_before_the_upgrade(), connection.schema_editor(atomic=False) as editor:
        KEEPING.keep(apps, editor)
        KEEPING.keep(apps, editor)
        after_two = numbers(KEPT)

    assert after_two == numbers(FULL_COUNT)
    assert sum(after_two.values()) == 7
