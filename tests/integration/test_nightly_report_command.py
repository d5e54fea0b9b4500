"""`manage.py nightly_report` beside other runs: it waits, or refuses to."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import OperationalError

from apps.core import advisory_locks, clock
from apps.reports import spark_job_process
from apps.reports.models import Run
from apps.reports.services import foreground_runs, report_requests, report_run_execution

pytestmark = pytest.mark.django_db(transaction=True)

ONE_DAY = timedelta(days=1)
# Makes every job fail at once, which shows that it was started.
NO_JAVA = "/nowhere"
NO_JAVA_THERE = f"JAVA_HOME is {NO_JAVA}"


@pytest.fixture(autouse=True)
def without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", NO_JAVA)


@pytest.fixture
def day() -> date:
    """Return a day that is over, even if midnight passes during the test."""
    return report_requests.newest_over(clock.now()) - 2 * ONE_DAY


def queued(first: date, last: date) -> Run:
    return Run.objects.create(
        first_day=first, last_day=last, asked_by="user:anna", asked_at=clock.now()
    )


def begin(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(
        state="running", epoch=run.epoch + 1, started_at=clock.now()
    )


def publish(run: Run) -> None:
    now = clock.now()
    Run.objects.filter(pk=run.pk).update(
        state="done", snapshot="1:1:", as_of=now, finished_at=now, rows_in=7
    )


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run `nightly_report` as a process, on the database of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATABASE_URL", spark_job_process.database_url())
        process = subprocess.Popen(
            [sys.executable, "manage.py", "nightly_report", *arguments],
            cwd=settings.BASE_DIR,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


@pytest.mark.parametrize("days_before", [0, 1])
def test_command_makes_its_report_after_a_run_over_one_of_its_days_has_ended(
    day: date, days_before: int
) -> None:
    other = queued(day, day + ONE_DAY)
    begin(other)
    days = ("--from", str(day - days_before * ONE_DAY), "--to", str(day))

    with command(*days) as process:
        with advisory_locks.attempt(report_run_execution.LOCK):
            waiting = first_line(process)
            asked_meanwhile = Run.objects.count()
            publish(other)
        _, complaint = process.communicate(timeout=120)

    assert waiting == (
        f"waiting for run {other.pk} ({day} to {day + ONE_DAY}), which is being made; "
        "Ctrl-C stops the waiting\n"
    )
    assert asked_meanwhile == 1
    own = Run.objects.get(asked_by="system:command line")
    assert (own.state, own.last_day) == ("failed", day)
    assert NO_JAVA_THERE in complaint
    assert process.returncode == 1


def test_command_waits_while_a_run_over_other_days_is_made(day: date) -> None:
    other = queued(day - ONE_DAY, day - ONE_DAY)
    begin(other)

    with command("--day", str(day)) as process:
        with advisory_locks.attempt(report_run_execution.LOCK):
            waiting = first_line(process)
            state_meanwhile = Run.objects.get(first_day=day).state
            publish(other)
        process.communicate(timeout=120)

    assert waiting.startswith(f"waiting for run {other.pk} ")
    assert state_meanwhile == "queued"
    assert Run.objects.get(first_day=day).state == "failed"


def test_run_that_began_after_the_command_replaces_a_second_one(
    day: date,
) -> None:
    other = queued(day - ONE_DAY, day)

    with command("--day", str(day)) as process:
        with advisory_locks.attempt(report_run_execution.LOCK):
            first_line(process)
            begin(other)
            publish(other)
        answer, _ = process.communicate(timeout=120)

    assert process.returncode == 0
    assert answer == (
        f"run {other.pk}: {day - ONE_DAY} to {day}, 7 rows, 0 of them late\n"
    )
    assert Run.objects.count() == 1


def test_command_ends_its_waiting_at_ctrl_c(day: date) -> None:
    begin(queued(day, day))

    with (
        advisory_locks.attempt(report_run_execution.LOCK),
        command("--day", str(day)) as process,
    ):
        first_line(process)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)

    assert process.returncode == 130
    assert complaint.startswith("CommandError: stopped; a run that is unfinished ")
    assert Run.objects.count() == 1


@pytest.mark.parametrize("days_before", [0, 1])
def test_no_wait_is_refused_with_status_75_while_any_run_is_made(
    day: date, days_before: int
) -> None:
    other_day = day - days_before * ONE_DAY
    other = queued(other_day, other_day)
    begin(other)

    with (
        advisory_locks.attempt(report_run_execution.LOCK),
        pytest.raises(CommandError) as refusal,
    ):
        call_command("nightly_report", "--no-wait", "--day", str(day))

    assert refusal.value.returncode == 75
    assert str(refusal.value) == (
        f"run {other.pk} is being made, and reports are made one at a time; "
        "try again later, or without --no-wait"
    )
    assert Run.objects.count() == 1


@pytest.mark.parametrize("options", [(), ("--no-wait",)])
def test_command_makes_the_run_of_a_dead_worker_itself(
    day: date, options: tuple[str, ...]
) -> None:
    dead = queued(day, day)
    begin(dead)

    with pytest.raises(CommandError, match=NO_JAVA_THERE):
        call_command("nightly_report", "--day", str(day), *options)

    dead.refresh_from_db()
    assert (dead.state, dead.epoch) == ("failed", 2)
    assert Run.objects.get(asked_by="system:command line").state == "failed"


def test_command_makes_all_days_up_to_the_newest_that_is_over_without_a_last_one(
    day: date,
) -> None:
    with pytest.raises(CommandError, match=NO_JAVA_THERE):
        call_command("nightly_report", "--from", str(day))

    run = Run.objects.get()
    newest = report_requests.newest_over(clock.now())
    assert (run.first_day, run.last_day) == (day, newest)


def test_command_explains_how_a_day_is_written() -> None:
    with pytest.raises(CommandError, match="'2026-13-01' is no day: write it as 2026-"):
        call_command("nightly_report", "--day", "2026-13-01")


def test_command_says_in_one_line_that_postgres_went_away(
    day: date, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go_away(**_: object) -> None:
        raise OperationalError("the connection is lost")

    monkeypatch.setattr(foreground_runs, "make", go_away)

    with pytest.raises(CommandError, match="Postgres is away: the connection is lost"):
        call_command("nightly_report", "--day", str(day))
