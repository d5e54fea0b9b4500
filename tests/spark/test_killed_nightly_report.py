"""A kill -9 at any instant of a night never publishes a part of a report.

Some tests kill the whole night, with its Spark job. Others kill the last step, the only
one that publishes, many times within its milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from django.db import connection

from apps.core import clock
from apps.core.actor import Actor
from apps.reports import spark_job_process
from apps.reports.models import Run
from apps.reports.services import report_requests
from tests import failure_report_builders, preloaded_fork_server
from tests.spark import report_publishing_step
from tests.spark.published_reports_text import published

pytestmark = [pytest.mark.spark, pytest.mark.django_db(transaction=True)]

SOAK = bool(os.environ.get("SOAK"))
# Twenty kills. Spark starts slowly: only a soak kills many whole nights.
NIGHTS = 50 if SOAK else 3
LAST_STEPS = 200 if SOAK else 17
FIRST, LAST = date(2026, 11, 17), date(2026, 11, 19)
NOON = datetime(2026, 11, 17, 12, tzinfo=UTC)
ANNA = Actor.user("anna")

WHOLE_NIGHT = "from apps.reports.tasks import rescue; rescue()"
# The steps of `report_run_execution` before the last one.
STAGE = """
import json
from apps.core import clock, shared_postgres_snapshot
from apps.reports.services import report_run_execution
from apps.reports.spark_job_process import JobOrder, carry_out
run = report_run_execution._begin({run}, now=clock.now())
with shared_postgres_snapshot.open_snapshot() as seen:
    order = JobOrder(run=run.pk, epoch=run.epoch, first_day=run.first_day,
                     last_day=run.last_day, snapshot=seen.name)
    print(json.dumps(carry_out(order, may_go_on=lambda: True)))
"""
# Only checking and publishing are repeated: these processes are forked from one
# that has loaded Django.
LAST_STEPS_BEGIN = preloaded_fork_server.of(report_publishing_step.__name__)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point every process started here at the tests' database and a lake."""
    monkeypatch.setenv("DATABASE_URL", spark_job_process.database_url())
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "poisonweb.settings")
    monkeypatch.setenv("POISONWEB_LAKE", str(tmp_path / "lake"))


def happen(number: int) -> None:
    """Capture this many failures on each day, and counters of as many minutes."""
    for day in range(3):
        at = NOON + timedelta(days=day)
        moment = at.isoformat()
        failures = [
            failure_report_builders.failure(
                at, failed_at=moment, first_failed_at=moment
            )
            for _ in range(number)
        ]
        failure_report_builders.capture(at, *failures)
        counters = [
            failure_report_builders.counter(minute=moment) for _ in range(number)
        ]
        failure_report_builders.count_up(at, *counters)


def start(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (sys.executable, "-c", f"import django; django.setup()\n{code}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def make() -> float:
    """Make all requested runs; return the seconds it took."""
    began = time.monotonic()
    with start(WHOLE_NIGHT) as process:
        assert process.wait(600) == 0
    return time.monotonic() - began


def ask() -> Run:
    return Run.objects.unfinished().first() or report_requests.queue(
        first_day=FIRST, last_day=LAST, actor=ANNA, now=clock.now()
    )


def kill(process: subprocess.Popen[str]) -> None:
    with process:
        process.send_signal(signal.SIGKILL)


@pytest.mark.usefixtures("lake")
def test_a_kill_never_publishes_a_part_of_a_report() -> None:
    happen(20)
    ask()
    seconds = make()
    before = published()
    happen(5)
    contents_after_kills = [
        killed_after(random.uniform(0.3, seconds)) for _ in range(NIGHTS)
    ]
    run, rows_read = staged()
    keep_staged()
    seconds = publish(run, rows_read)
    after = published()

    again = [killed_publishing(run, rows_read, seconds) for _ in range(LAST_STEPS)]

    assert before != after
    assert set(contents_after_kills) <= {before, after}
    assert set(again) == {after}


def killed_after(seconds: float) -> str:
    """Begin a night, kill it, and return the published rows."""
    ask()
    process = start(WHOLE_NIGHT)
    time.sleep(seconds)
    kill(process)
    return published()


def killed_publishing(run: Run, rows_read: dict[str, int], seconds: float) -> str:
    stage_again(run)
    process = begin_last_step(run, rows_read)
    time.sleep(random.uniform(0, seconds))
    process.kill()
    process.join()
    return published()


def begin_last_step(run: Run, rows_read: dict[str, int]) -> BaseProcess:
    begun, says = LAST_STEPS_BEGIN.Pipe(duplex=False)
    process = LAST_STEPS_BEGIN.Process(
        target=report_publishing_step.publish,
        args=(connection.settings_dict["NAME"], run.pk, rows_read, says),
    )
    process.start()
    # Close our end, so that recv fails if the process dies before it sends.
    says.close()
    assert begun.recv()
    return process


def staged() -> tuple[Run, dict[str, int]]:
    """Run the job of a run, without publishing."""
    run = ask()
    code = STAGE.format(run=run.pk)
    with start(code) as process:
        assert process.stdout
        rows_read = process.stdout.read()
    return Run.objects.get(pk=run.pk), json.loads(rows_read)


def publish(run: Run, rows_read: dict[str, int]) -> float:
    """Carry out the last step; return the seconds after it signalled its start."""
    process = begin_last_step(run, rows_read)
    began = time.monotonic()
    process.join(60)
    assert process.exitcode == 0
    return time.monotonic() - began


def keep_staged() -> None:
    with connection.cursor() as cursor:
        for name in ("rate", "problem"):
            cursor.execute(f"DROP TABLE IF EXISTS kept_{name}")
            cursor.execute(
                f"CREATE TEMP TABLE kept_{name} AS TABLE reports_staged_{name}"
            )


def stage_again(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(state="running", finished_at=None)
    with connection.cursor() as cursor:
        for name in ("rate", "problem"):
            cursor.execute(f"DELETE FROM reports_staged_{name}")
            cursor.execute(f"INSERT INTO reports_staged_{name} TABLE kept_{name}")
