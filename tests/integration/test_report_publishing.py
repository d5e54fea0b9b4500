"""Publishing staged rows: as a whole, checked, and fenced."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from io import BytesIO
from threading import Thread
from typing import Any

import pytest
from django.db import connection, transaction

from apps.brokers.models import Topic
from apps.capture import unused_topic_removal
from apps.capture.unused_topic_removal import RecordsExist
from apps.core import advisory_locks, shared_postgres_snapshot
from apps.core.actor import Actor
from apps.core.shared_postgres_snapshot import Snapshot
from apps.poison.models import Problem
from apps.reports import spark_job_process
from apps.reports.errors import RunFailed, TakenOver, Unreconciled
from apps.reports.models import Day, ProblemDay, Rate, Run
from apps.reports.services import (
    next_unfinished_run,
    publishing,
    report_requests,
    report_run_execution,
    staged_data_checks,
)
from apps.reports.services.publishing import DayRows
from apps.reports.services.report_run_execution import RunEnd
from apps.team.rights import Principal
from tests import failure_report_builders
from tests.races import at_once
from tests.waiting import wait_until

DAY = date(2026, 11, 19)
AT_TWO = datetime(2026, 11, 20, 2, tzinfo=UTC)
FAILED_AT = datetime(2026, 11, 19, 9, 30, tzinfo=UTC)
TOLD = {"failures": 1, "counters": 1, "decisions": 0} | dict.fromkeys(
    ("calls", "deliveries", "backlogs"), 0
)
GRAINS = [(9, "billing"), (None, "billing"), (9, None), (None, None)]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def facts() -> None:
    """One message failed, and a minute of twelve deliveries was counted."""
    moment = FAILED_AT.isoformat()
    failure_report_builders.capture(
        FAILED_AT,
        failure_report_builders.failure(
            FAILED_AT, failed_at=moment, first_failed_at=moment
        ),
    )
    failure_report_builders.count_up(FAILED_AT, failure_report_builders.counter())


@pytest.fixture
def run(facts: None) -> Run:
    return begun()


@pytest.fixture
def run_snapshot(run: Run) -> Iterator[Snapshot]:
    with shared_postgres_snapshot.open_snapshot() as moment:
        Run.objects.filter(pk=run.pk).update(snapshot=moment.pg_snapshot, as_of=AT_TWO)
        yield moment


def begun(first: date = DAY, last: date = DAY) -> Run:
    run = report_requests.queue(
        first_day=first, last_day=last, actor=Actor.user("anna"), now=AT_TWO
    )
    Run.objects.filter(pk=run.pk).update(state="running", epoch=1, started_at=AT_TWO)
    return Run.objects.get(pk=run.pk)


def stage_rate(run: Run, hour: int | None, group: str | None, **changes: Any) -> None:
    row = {
        "run_id": run.pk,
        "epoch": run.epoch,
        "day": DAY,
        "hour": hour,
        "topic": "orders",
        "consumer_group": group,
        "source": "sdk",
        "delivered": 12,
        "failed": 2,
        "uncounted": 0,
        "poisoned": 1,
        "skipped": 1,
        "retried": 3,
        **dict.fromkeys(("redriven", "confirmed", "recurred", "dropped"), 0),
        "failure_rate": 2 / 12,
        "rate_low": 0.05,
        "rate_high": 0.45,
        **changes,
    }
    insert("reports_staged_rate", row)


def stage_problem(run: Run, **changes: Any) -> None:
    row = {
        "run_id": run.pk,
        "epoch": run.epoch,
        "day": DAY,
        "problem": Problem.objects.get().pk,
        "delivered": 12,
        "failed": 1,
        "poisoned": 1,
        "retried": 0,
        **dict.fromkeys(("redriven", "confirmed", "recurred", "dropped"), 0),
        **changes,
    }
    insert("reports_staged_problem", row)


def insert(table: str, row: dict[str, Any]) -> None:
    places = ", ".join(["%s"] * len(row))
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})",
            list(row.values()),
        )


def stage(run: Run, **changes: Any) -> None:
    for hour, group in GRAINS:
        stage_rate(run, hour, group, **changes)
    stage_problem(run)


def rows(total: int = 2, late: int = 0) -> dict[date, DayRows]:
    return {DAY: DayRows(total=total, late=late)}


def publish(run: Run, *, rows: dict[date, DayRows] | None = None) -> None:
    staged = publishing.count_staged(run)
    publishing.publish(
        run=run,
        rows=rows or {DAY: DayRows(total=2, late=0)},
        staged=staged,
        now=AT_TWO,
    )


def test_staged_rows_that_agree_with_postgres_pass(
    run: Run, run_snapshot: Snapshot
) -> None:
    stage(run)

    rows_by_day = staged_data_checks.check(
        run=run, snapshot=run_snapshot, rows_read=TOLD
    )

    assert rows_by_day == rows()


def test_rows_after_the_snapshot_are_not_expected(
    run: Run, run_snapshot: Snapshot
) -> None:
    stage(run)
    failure_report_builders.count_up(
        AT_TWO, failure_report_builders.counter(sequence=2)
    )

    assert (
        staged_data_checks.check(run=run, snapshot=run_snapshot, rows_read=TOLD)
        == rows()
    )


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"delivered": 13}, "2026-11-19 delivered is 13, Postgres has 12"),
        ({"poisoned": 0}, "2026-11-19 poisoned is 0, Postgres has 1"),
        ({"skipped": 0}, "2026-11-19 skipped is 0, Postgres has 1"),
        ({"redriven": 1}, "2026-11-19 redriven is 1, Postgres has 0"),
        ({"retried": -1}, "impossible numbers: 2026-11-19 orders"),
        ({"failed": 13}, "impossible numbers: 2026-11-19 orders"),
        ({"topic": "never heard of"}, "impossible numbers: 2026-11-19 never heard of"),
    ],
)
def test_a_number_that_differs_is_named(
    run: Run, run_snapshot: Snapshot, changes: dict[str, Any], complaint: str
) -> None:
    stage(run, **changes)

    with pytest.raises(Unreconciled, match=complaint):
        staged_data_checks.check(run=run, snapshot=run_snapshot, rows_read=TOLD)


def test_grains_that_differ_are_named(run: Run, run_snapshot: Snapshot) -> None:
    stage(run)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE reports_staged_rate SET retried = 4 WHERE hour IS NULL")

    with pytest.raises(Unreconciled, match="its grains differ: 2026-11-19 orders"):
        staged_data_checks.check(run=run, snapshot=run_snapshot, rows_read=TOLD)


def test_a_day_outside_the_window_is_named(run: Run, run_snapshot: Snapshot) -> None:
    stage(run)
    stage_problem(run, day=date(2031, 1, 1), failed=0, poisoned=0)

    with pytest.raises(Unreconciled, match="impossible numbers: 2031-01-01"):
        staged_data_checks.check(run=run, snapshot=run_snapshot, rows_read=TOLD)


def test_a_job_that_read_too_few_rows_is_detected(
    run: Run, run_snapshot: Snapshot
) -> None:
    stage(run)

    with pytest.raises(Unreconciled, match="rows read: counters is 0, Postgres has 1"):
        staged_data_checks.check(
            run=run, snapshot=run_snapshot, rows_read={**TOLD, "counters": 0}
        )


def test_a_failure_dated_by_a_clock_ahead_belongs_to_the_next_day(
    seen_late: Run,
) -> None:
    with shared_postgres_snapshot.open_snapshot() as moment:
        counts = staged_data_checks._count_by_kind(
            moment.query(
                staged_data_checks._FACTS, staged_data_checks._window(seen_late)
            )
        )

    assert counts["failures"] == 1


@pytest.fixture
def seen_late() -> Run:
    midnight = datetime(2026, 11, 19, tzinfo=UTC)
    moment = (midnight + timedelta(minutes=2)).isoformat()
    now = midnight - timedelta(minutes=1)
    failure_report_builders.capture(
        now,
        failure_report_builders.failure(now, failed_at=moment, first_failed_at=moment),
    )
    return begun()


def test_a_day_is_replaced_whole(run: Run, run_snapshot: Snapshot) -> None:
    stage(run)
    publish(Run.objects.get(pk=run.pk))
    again = begun()
    Run.objects.filter(pk=again.pk).update(
        snapshot=run_snapshot.pg_snapshot, as_of=AT_TWO
    )
    stage_rate(again, None, None, delivered=20)

    publish(again, rows=rows(total=3, late=1))

    assert [(r.hour, r.delivered) for r in Rate.objects.all()] == [(None, 20)]
    assert not ProblemDay.objects.exists()
    day = Day.objects.get()
    assert (day.run_id, day.rows_in, day.late_rows) == (again.pk, 3, 1)
    assert Run.objects.get(pk=again.pk).late_rows == 1


def test_no_part_of_a_report_is_visible_before_the_whole(
    run: Run, run_snapshot: Snapshot
) -> None:
    stage(run, failure_rate=7.0)

    with pytest.raises(Exception, match="reports_rate_is_a_part"):
        publish(Run.objects.get(pk=run.pk))

    assert not Day.objects.exists()
    assert Run.objects.get(pk=run.pk).state == "running"


def test_a_start_that_was_taken_over_publishes_nothing(
    run: Run, run_snapshot: Snapshot
) -> None:
    stage(run)
    older = Run.objects.get(pk=run.pk)
    Run.objects.filter(pk=run.pk).update(epoch=2)

    with pytest.raises(TakenOver):
        publish(older)

    assert not Day.objects.exists()


def test_rows_staged_by_another_epoch_are_not_published(
    run: Run, run_snapshot: Snapshot
) -> None:
    stage(run)
    Run.objects.filter(pk=run.pk).update(epoch=2)

    publish(Run.objects.get(pk=run.pk))

    assert Day.objects.count() == 1
    assert not Rate.objects.exists()


def test_a_run_whose_staged_rows_another_one_deleted_publishes_nothing(
    run: Run, run_snapshot: Snapshot
) -> None:
    stage(run)
    this = Run.objects.get(pk=run.pk)
    staged = publishing.count_staged(this)
    publishing.delete_staged()

    with pytest.raises(TakenOver):
        publishing.publish(run=this, rows=rows(), staged=staged, now=AT_TWO)

    assert not Day.objects.exists()
    assert Run.objects.get(pk=run.pk).state == "running"


def watched(name: str) -> Topic:
    """Stage a topic that only its broker counts."""
    return Topic.objects.create(name=name, native_name=name)


def stage_told_by_broker(run: Run, topic: str) -> None:
    measures = {"topic": topic, "source": "broker", "poisoned": 0, "skipped": 0}
    for hour, group in GRAINS:
        stage_rate(run, hour, group, **measures)


def test_staged_rates_of_a_topic_removed_meanwhile_are_dropped(
    facts: None, run: Run
) -> None:
    topic = watched("wrong")
    with shared_postgres_snapshot.open_snapshot() as run_snapshot:
        Run.objects.filter(pk=run.pk).update(
            snapshot=run_snapshot.pg_snapshot, as_of=AT_TWO
        )
        stage(run)
        stage_told_by_broker(run, "wrong")
        topic.delete()

        publishing.delete_removed_topics(run, run_snapshot)
        staged_data_checks.check(run=run, snapshot=run_snapshot, rows_read=TOLD)
    publish(run)

    assert set(Rate.objects.values_list("topic__name", flat=True)) == {"orders"}


def test_a_staged_topic_that_never_existed_is_refused(
    run: Run, run_snapshot: Snapshot
) -> None:
    stage(run)
    stage_told_by_broker(run, "nowhere")

    publishing.delete_removed_topics(run, run_snapshot)

    with pytest.raises(Unreconciled, match="impossible numbers: 2026-11-19 nowhere"):
        staged_data_checks.check(run=run, snapshot=run_snapshot, rows_read=TOLD)


def test_a_topic_removed_after_the_check_makes_the_run_start_again(
    run: Run, run_snapshot: Snapshot
) -> None:
    topic = watched("wrong")
    stage(run)
    stage_told_by_broker(run, "wrong")
    staged = publishing.count_staged(run)
    topic.delete()

    with pytest.raises(TakenOver):
        publishing.publish(run=run, rows=rows(), staged=staged, now=AT_TWO)

    assert Run.objects.get(pk=run.pk).state == "running"


def test_a_topic_cannot_be_removed_while_its_rates_are_published(
    run: Run, run_snapshot: Snapshot, operator: Principal
) -> None:
    topic = watched("wrong")
    stage(run)
    stage_told_by_broker(run, "wrong")
    refused: list[RecordsExist] = []

    def remove() -> None:
        try:
            unused_topic_removal.remove_topics(
                topics=[topic.pk], principal=operator, now=AT_TWO
            )
        except RecordsExist as refusal:
            refused.append(refusal)

    other = Thread(target=at_once, args=[remove])
    with transaction.atomic():
        publish(run)
        other.start()
        other.join(timeout=0.5)
        assert other.is_alive(), "it did not wait for what is being published"
    other.join()

    assert "wrong (reports)" in str(refused[0])


def test_publishing_deletes_only_the_staged_rows_of_its_run(
    run: Run, run_snapshot: Snapshot
) -> None:
    stage(run)
    other = begun(date(2026, 11, 1), date(2026, 11, 1))
    stage(other)

    publish(Run.objects.get(pk=run.pk))

    assert (publishing.count_staged(run), publishing.count_staged(other)) == (0, 5)


def test_a_job_without_java_fails_and_says_so(
    facts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    run = report_requests.queue(
        first_day=DAY, last_day=DAY, actor=Actor.user("anna"), now=AT_TWO
    )

    ended = report_run_execution.run(run_id=run.pk, clock=lambda: AT_TWO)

    run.refresh_from_db()
    assert ended is RunEnd.FAILED
    assert (run.state, Day.objects.exists()) == ("failed", False)
    assert "JAVA_HOME" in run.trouble
    assert "JAVA_HOME" in run.log


def test_only_one_report_is_made_at_a_time(facts: None) -> None:
    run = report_requests.queue(
        first_day=DAY, last_day=DAY, actor=Actor.user("anna"), now=AT_TWO
    )

    with advisory_locks.attempt(report_run_execution.LOCK):
        assert (
            report_run_execution.run(run_id=run.pk, clock=lambda: AT_TWO)
            is RunEnd.ELSEWHERE
        )
        assert next_unfinished_run.next_to_run() is None

    # Postgres releases a lock a moment after its session has ended.
    wait_until(lambda: next_unfinished_run.next_to_run() == run.pk)


def test_a_run_that_kills_its_worker_again_and_again_is_given_up(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(epoch=report_run_execution.MOST_STARTS)

    ended = report_run_execution.run(run_id=run.pk, clock=lambda: AT_TWO)

    assert ended is RunEnd.FAILED
    assert "worker died each time" in Run.objects.get(pk=run.pk).trouble
    assert next_unfinished_run.next_to_run() is None


def test_an_unexpected_error_fails_the_run_and_is_raised(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")

    with pytest.raises(FileNotFoundError):
        report_run_execution.run(run_id=run.pk, clock=lambda: AT_TWO)

    run.refresh_from_db()
    assert run.state == "failed"
    assert run.trouble.startswith("FileNotFoundError: ")


def test_a_job_ends_when_it_may_not_go_on(run: Run) -> None:
    order = spark_job_process.JobOrder(
        run=run.pk, epoch=1, first_day=DAY, last_day=DAY, snapshot="0-0-1"
    )

    with pytest.raises(TakenOver):
        spark_job_process.carry_out(order, may_go_on=lambda: False)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"nothing\n",
        b'{"rows": [1]}\n',
        b'{"rows": {"failures": null}}\n',
        b'a warning of Java\n{"rows": {"failures": 1}}\n',
    ],
)
def test_an_unreadable_answer_of_a_job_is_a_failure(said: bytes) -> None:
    with pytest.raises(RunFailed, match="did not say what it read"):
        spark_job_process._rows_read(BytesIO(said), BytesIO(b"a warning\n"))
