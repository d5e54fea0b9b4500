"""Repeats of a failure are folded by the minute, and counted one by one."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from django.db.models import Sum

from apps.capture import daily_partition_creation
from apps.capture.intake import repeat_folding, services
from apps.capture.intake.services import CaptureAnswer
from apps.core.schema_changes import migrate
from apps.dashboard.selectors import problems, topics
from apps.poison.models import Failure, FoldedReports, Poison, Problem
from apps.poison.redrive_ids import pack
from apps.team.rights import Scope
from tests.failure_report_builders import GUARD, capture, failure, poisons, repeats
from tests.in_memory_queue_broker import Queues
from tests.integration.api.schema_checking_client import program
from tests.lane_crash_simulation import drain_all, topic_on_queues
from tests.races import together
from tests.skip_builders_and_list_mirror import ANNA
from tests.triage_operation_runner import redriven

pytestmark = pytest.mark.django_db

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
DAY = timedelta(days=1)
MOST = repeat_folding.MOST_SINGLE
Report = dict[str, object]


def statuses(answers: Sequence[CaptureAnswer]) -> set[str]:
    return {str(answer.status) for answer in answers}


def in_batches(now: datetime, reports: Sequence[Report], size: int = 150) -> None:
    for first in range(0, len(reports), size):
        capture(now, *reports[first : first + size])


def counted() -> int:
    """Count the failures that the rows stand for."""
    return Failure.objects.aggregate(number=Sum("times"))["number"] or 0


def at(moment: datetime, report: Report) -> Report:
    return {
        **report,
        "failed_at": moment.isoformat(),
        "first_failed_at": moment.isoformat(),
    }


@pytest.mark.parametrize("size", [1, 7, 150, 400])
def test_beyond_a_hundred_a_minute_stores_at_most_two_failures(
    now: datetime, size: int
) -> None:
    in_batches(now, repeats(now, 400), size)

    assert Poison.objects.get().failures == counted() == 400
    assert Failure.objects.count() == MOST + 1
    later = now + MINUTE
    in_batches(
        later, [at(later, each) for each in repeats(now, 50, bookmark="b")], size
    )
    assert Failure.objects.count() == MOST + 1 + 50, "another message is not folded"


def test_each_minute_keeps_its_first_and_its_last_failure(now: datetime) -> None:
    reports = repeats(now, MOST + 40)
    in_batches(now, reports[:MOST])
    exceptions = [
        {"type": "E", "message": f"attempt {number}", "traceback": f"trace {number}"}
        for number in range(40)
    ]
    later = [
        {**at(now + MINUTE + number * SECOND, report), "exception": exceptions[number]}
        for number, report in enumerate(reports[MOST:])
    ]

    in_batches(now + 2 * MINUTE, later, size=7)

    (first, last) = Failure.objects.filter(failed_at__gte=now + MINUTE).order_by("id")
    assert (first.error_message, first.times) == ("attempt 0", 1)
    assert (last.error_message, last.traceback) == ("attempt 39", "trace 39")
    assert (last.times, last.failed_at) == (39, now + MINUTE + SECOND)
    assert last.last_failed_at == now + MINUTE + 39 * SECOND
    assert counted() == Poison.objects.get().failures == MOST + 40


def test_the_next_minute_begins_with_a_row_of_its_own(now: datetime) -> None:
    minute = now.replace(second=0, microsecond=0)
    in_batches(now, repeats(now, MOST, bookmark="1-0"))
    last = minute + MINUTE - timedelta(microseconds=1)
    moments = [minute, last, minute + MINUTE, last, minute + MINUTE, last, minute]
    reports = [at(moment, failure(now, bookmark="1-0")) for moment in moments]

    capture(now + MINUTE, *reports[:5])
    for report in reports[5:]:
        capture(now + MINUTE, report)
    before = minute - timedelta(microseconds=1)
    capture(
        now + MINUTE, *(at(before, each) for each in repeats(now, 3, bookmark="1-0"))
    )

    newest = Failure.objects.order_by("id")[MOST:]
    assert [(row.failed_at, row.times, row.last_failed_at) for row in newest] == [
        # The first of this minute stands among the hundred.
        (minute, 5, last),
        (minute + MINUTE, 1, None),
        (minute + MINUTE, 1, minute + MINUTE),
        # That of the minute before has other rows, though it came later.
        (before, 1, None),
        (before, 2, before),
    ]
    assert counted() == Poison.objects.get().failures == MOST + len(moments) + 3


def test_an_older_failure_is_counted_and_its_texts_are_not_shown(now: datetime) -> None:
    in_batches(now, repeats(now, MOST, bookmark="1-0"))

    def fail(seconds: int) -> None:
        text = {"type": "E", "message": f"after {seconds}", "traceback": ""}
        report = failure(now + seconds * SECOND, bookmark="1-0", exception=text)
        capture(now + MINUTE, report)

    for seconds in (10, 50, 30):
        fail(seconds)

    last = Failure.objects.get(times=2)
    assert (last.error_message, last.last_failed_at) == (
        "after 50",
        now + 50 * SECOND,
    )
    fail(55)
    last.refresh_from_db()
    assert (last.error_message, last.times) == ("after 55", 3)


def test_a_folded_report_that_is_sent_again_counts_once(now: datetime) -> None:
    reports = repeats(now, 450)
    in_batches(now, reports)
    rows = Failure.objects.count()

    for moment in (now + SECOND, now + timedelta(hours=23, minutes=59)):
        repeat_folding.prune(now=moment)
        whole = capture(moment, *random.Random(1).sample(reports, len(reports)))
        single = [capture(moment, report)[0] for report in reports[::40]]
        assert statuses([*whole, *single]) == {"duplicate"}
        twice = capture(moment, reports[-1], reports[-1])
        assert statuses(twice) == {"duplicate"}

    assert (Poison.objects.get().failures, counted()) == (450, 450)
    assert Failure.objects.count() == rows


def test_a_report_that_comes_twice_in_one_request_is_folded_once(now: datetime) -> None:
    in_batches(now, repeats(now, MOST + 10, bookmark="1-0"))
    report = failure(now, bookmark="1-0")

    answers = capture(now, report, report)

    assert [str(answer.status) for answer in answers] == ["updated", "duplicate"]
    assert Poison.objects.get().failures == counted() == MOST + 11


def test_ids_of_folded_reports_are_kept_for_a_day(now: datetime) -> None:
    in_batches(now, repeats(now, 400))

    repeat_folding.prune(now=now + DAY)
    assert FoldedReports.objects.exists()
    repeat_folding.prune(now=now + 2 * DAY)
    assert not FoldedReports.objects.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"client_name": "billing-2"},
        {"sub_id": "2"},
        {"host": "web-4"},
        {"handler_version": "2"},
        {"cause": "fatal"},
        {"exception": {"type": "KeyError", "message": "'x'", "traceback": ""}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_only_failures_of_one_kind_are_folded_together(
    now: datetime, change: dict[str, object]
) -> None:
    in_batches(now, repeats(now, MOST, bookmark="1-0"))

    usual = repeats(now, 30, bookmark="1-0")
    other = [{**each, **change} for each in repeats(now, 20, bookmark="1-0")]
    mixed = random.Random(7).sample([*usual, *other], 50)
    in_batches(now, mixed, size=20)

    folded = Failure.objects.filter(times__gt=1).order_by("-times")
    # The first of the usual ones stands in a row of the hundred before.
    assert list(folded.values_list("times", flat=True)) == [30, 19]
    assert counted() == Poison.objects.get().failures == MOST + 50


def test_what_must_be_found_again_is_never_folded(now: datetime) -> None:
    (poison,) = poisons(now, 1, bookmark="1-0")
    in_batches(now, repeats(now, MOST + 20, bookmark="1-0"))
    before = Failure.objects.count()
    far = now - 40 * DAY

    capture(now, failure(now, bookmark="1-0", redrive=redriven(poison, now)))
    capture(now, failure(now, bookmark="1-0", suspected=True))
    capture(now, at(far, failure(now, bookmark="1-0")))
    capture(now, failure(now, bookmark="1-0", attempts=2**31 - 1))

    newest = Failure.objects.order_by("-id")[:4]
    assert Failure.objects.count() == before + 4
    assert all(row.times == 1 and row.last_failed_at is None for row in newest)
    assert Poison.objects.get().recurrences == 1


def test_letters_are_never_folded(broker: Queues, now: datetime) -> None:
    topic = topic_on_queues(now)
    headers = ((b"x-original-bookmark", b"1-0"),)
    for _ in range(MOST + 20):
        broker.put("mail-dead", b"1", headers)

    drain_all(topic, now)

    assert Poison.objects.get().failures == MOST + 20
    assert Failure.objects.count() == counted() == MOST + 20


def test_attempts_of_folded_failures_add_up(now: datetime) -> None:
    attempts = [number % 4 for number in range(MOST + 60)]
    reports = [
        {**report, "attempts": attempts[number]}
        for number, report in enumerate(repeats(now, len(attempts)))
    ]

    in_batches(now, reports, size=9)

    poison = Poison.objects.get()
    assert poison.attempts == sum(attempts)
    retried = sum(max(row.attempts - row.times, 0) for row in Failure.objects.all())
    assert retried == sum(max(number - 1, 0) for number in attempts)


def test_pages_and_the_api_count_each_folded_failure(now: datetime) -> None:
    in_batches(now, repeats(now, 400, client_name="billing-7"))
    in_batches(now, repeats(now, 30))
    problem = Problem.objects.select_related("topic").get()

    (row,) = problems.rows([problem], now=now + SECOND)
    assert row.failures_today == 430
    topic = topics.one(problem.topic_id, ANNA, now=now + SECOND).row
    assert topic.failures.number == 430  # type: ignore[union-attr]
    consumers = next(
        top for top in problems._breakdown(problem.pk).tops if top.title == "Consumers"
    )
    assert consumers.values == [("billing-7", 400), ("billing-1", 30)]
    assert consumers.whole == 430


@pytest.mark.present
def test_the_api_tells_how_many_failures_one_stands_for(now: datetime) -> None:
    in_batches(now, repeats(now, 400))
    caller = program(Scope.POISONS_READ)

    poison = caller.get(f"poisons/{Poison.objects.get().pk}").json

    assert poison["counts"]["failures"] == 400
    times = [row["times"] for row in poison["failures"]]
    assert (max(times), len(times)) == (400 - MOST, 50)


@pytest.mark.django_db(transaction=True)
def test_many_writers_of_one_failing_message_count_each_report_once(
    now: datetime,
) -> None:
    reports = repeats(now, 600)

    def write(turn: int) -> None:
        dice = random.Random(turn)
        # Each writer has some of its own, and some that another one sends, too.
        mine = [*reports[turn * 100 : turn * 100 + 100], *dice.sample(reports, 60)]
        dice.shuffle(mine)
        while mine:
            size = dice.choice([1, 5, 40])
            batch, mine = mine[:size], mine[size:]
            services.capture(members=batch, principal=GUARD, now=now)

    together(6, write)

    assert Poison.objects.get().failures == counted() == 600
    assert Failure.objects.count() <= MOST + 2
    of_rows = Failure.objects.values_list("report_id", flat=True)
    ids = [
        report for row in FoldedReports.objects.all() for report in row.reports
    ] + list(of_rows)
    assert sorted(map(str, ids)) == sorted(str(each["report_id"]) for each in reports)


@pytest.mark.django_db(transaction=True)
def test_what_is_rolled_back_is_folded_when_it_is_sent_again(now: datetime) -> None:
    in_batches(now, repeats(now, MOST + 5, bookmark="1-0"))
    reports = repeats(now, 30, bookmark="1-0")

    with transaction.atomic():
        capture(now, *reports[:20])
        for report in reports[20:]:
            capture(now, report)
        transaction.set_rollback(True)

    assert Poison.objects.get().failures == counted() == MOST + 5
    assert statuses(capture(now, *reports[:25])) == {"updated"}
    again = [capture(now, report)[0] for report in reports[25:]]
    assert statuses(again) == {"updated"}
    assert statuses(capture(now, *reports)) == {"duplicate"}
    assert Poison.objects.get().failures == counted() == MOST + 35


@pytest.mark.django_db(transaction=True)
def test_writers_that_are_killed_count_each_report_once(now: datetime) -> None:
    reports = repeats(now, 500)
    in_batches(now, reports[:200])
    over = threading.Event()

    def write(turn: int) -> int:
        if turn == 0:
            return kill_others(until=over)
        dice = random.Random(turn)
        deaths = 0
        mine = reports[100 + turn * 100 :]
        try:
            while mine:
                size = dice.choice([1, 5, 40])
                try:
                    services.capture(members=mine[:size], principal=GUARD, now=now)
                except DatabaseError:
                    connection.close()
                    deaths += 1  # and the same ones are sent again
                else:
                    mine = mine[size:]
        finally:
            if turn == 1:
                over.set()
        return deaths

    (kills, *deaths) = together(3, write)

    assert kills >= sum(deaths) > 3
    assert Poison.objects.get().failures == counted() == 500
    assert Failure.objects.count() <= MOST + 2


def kill_others(*, until: threading.Event) -> int:
    """End sessions of other writers at any moment; return how many were ended."""
    kills = 0
    while not until.wait(0.05) and kills < 40:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND datname = current_database()"
                " AND state <> 'idle' AND backend_type = 'client backend'"
                " ORDER BY random() LIMIT 1"
            )
            kills += len(cursor.fetchall())
    return kills


def test_a_thousand_consumers_that_fail_on_one_message_have_rows_of_their_own(
    now: datetime,
) -> None:
    for turn in range(3):
        members = [
            {**report, "client_name": f"billing-{number % 300}", "sub_id": "x" * 200}
            for number, report in enumerate(repeats(now, 900, bookmark="1-0"))
        ]
        in_batches(now, members, size=450)
        assert counted() == 900 * (turn + 1)

    assert Failure.objects.count() <= MOST + 2 * 300
    assert Failure.objects.values("client_name").distinct().count() == 300


def test_reports_with_ids_alike_are_told_apart(now: datetime) -> None:
    reports = [
        {**report, "report_id": str(pack(1, number, 1))}
        for number, report in enumerate(repeats(now, 700))
    ]
    in_batches(now, reports, size=350)

    assert statuses(capture(now, *reports)) == {"duplicate"}
    assert Poison.objects.get().failures == counted() == 700


def test_new_partitions_have_the_index_of_folded_failures(now: datetime) -> None:
    names = daily_partition_creation.make(today=(now + 400 * DAY).date())
    child = next(name for name in names if name.startswith("poison_failure"))

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_indexes WHERE tablename = %s"
            " AND indexdef LIKE '%%WHERE folds%%'",
            [child],
        )
        assert cursor.fetchone() == (1,)


@pytest.mark.django_db(transaction=True)
def test_the_release_before_finds_a_row_for_each_failure(now: datetime) -> None:
    attempts = [number % 3 for number in range(MOST + 60)]
    reports = [
        {**report, "attempts": attempts[number]}
        for number, report in enumerate(repeats(now, len(attempts)))
    ]
    in_batches(now, reports)
    try:
        migrate("poison", "0013")
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*), sum(greatest(attempts - 1, 0)), count(DISTINCT id)"
                " FROM poison_failure"
            )
            before = cursor.fetchone()
    finally:
        migrate()

    retried = sum(max(number - 1, 0) for number in attempts)
    assert before == (MOST + 60, retried, MOST + 60)
    assert counted() == MOST + 60
    assert statuses(capture(now, *reports)) == {"duplicate"}


@pytest.mark.django_db(transaction=True)
def test_a_migration_that_was_interrupted_builds_the_index_that_is_missing(
    now: datetime,
) -> None:
    capture(now, failure(now))
    try:
        migrate("poison", "0016")
        # A build that waits for a writer, and is ended then, leaves an invalid index.
        writer = connection.copy()
        with writer.cursor() as writing, connection.cursor() as cursor:
            writing.execute("BEGIN")
            writing.execute("LOCK TABLE poison_failure_default IN ROW EXCLUSIVE MODE")
            cursor.execute("SET lock_timeout = '10ms'")
            with pytest.raises(OperationalError):
                cursor.execute(
                    "CREATE INDEX CONCURRENTLY poison_failure_default_folds"
                    " ON poison_failure_default (problem_id, failed_at) WHERE folds"
                )
            cursor.execute("RESET lock_timeout")
            writing.execute("ROLLBACK")
        writer.close()
    finally:
        migrate()

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT bool_and(indisvalid) FROM pg_index JOIN pg_inherits"
            " ON inhrelid = indexrelid"
            " WHERE inhparent = 'poison_failure_folds'::regclass"
        )
        assert cursor.fetchone() == (True,)
