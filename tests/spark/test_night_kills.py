"""A kill -9 at any instant of a night shows nobody a part of a report.

The whole night is killed, its Spark job with it; the last step, which alone can show
anything, is also killed by itself, many times and within its milliseconds.
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
from pathlib import Path

import pytest
from django.db import connection

from apps.core import clock
from apps.core.actor import Actor
from apps.reports import job
from apps.reports.models import Run
from apps.reports.services import requests
from tests import reports
from tests.spark.published import published

pytestmark = [pytest.mark.spark, pytest.mark.django_db(transaction=True)]

SOAK = bool(os.environ.get("SOAK"))
# Twenty kills. Spark takes its time to start: only a soak kills many whole nights.
NIGHTS = 50 if SOAK else 3
LAST_STEPS = 200 if SOAK else 17
FIRST, LAST = date(2026, 11, 17), date(2026, 11, 19)
NOON = datetime(2026, 11, 17, 12, tzinfo=UTC)
ANNA = Actor.user("anna")

WHOLE_NIGHT = "from apps.reports.tasks import rescue; rescue()"
# What `running` does before the last step.
STAGE = """
import json
from apps.core import clock, snapshot
from apps.reports import job
from apps.reports.services import running
run = running._begin({run}, now=clock.now())
with snapshot.held() as seen:
    order = job.Order(run=run.pk, epoch=run.epoch, first_day=run.first_day,
                      last_day=run.last_day, snapshot=seen.name)
    print(json.dumps(job.carry_out(order, may_go_on=lambda: True)))
"""
# The job's part is done and stays staged: only checking and publishing are left.
LAST_STEP = """
from apps.core import clock, snapshot
from apps.reports.models import Run
from apps.reports.services import publishing, quality
run = Run.objects.get(pk={run})
print("begun", flush=True)
with snapshot.held() as seen:
    Run.objects.filter(pk=run.pk).update(snapshot=seen.seen, as_of=clock.now())
    staged = publishing.staged(run)
    rows = quality.check(run=run, snapshot=seen, told={told})
publishing.publish(run=run, rows=rows, staged=staged, now=clock.now())
"""


@pytest.fixture
def lake(tmp_path: Path) -> dict[str, str]:
    return {
        "DATABASE_URL": job.database_url(),
        "DJANGO_SETTINGS_MODULE": "poisonweb.settings",
        "POISONWEB_LAKE": str(tmp_path / "lake"),
    }


def happen(number: int) -> None:
    """Let so many messages fail on each day, and as many minutes be counted."""
    for day in range(3):
        at = NOON + timedelta(days=day)
        moment = at.isoformat()
        failures = [
            reports.failure(at, failed_at=moment, first_failed_at=moment)
            for _ in range(number)
        ]
        reports.capture(at, *failures)
        counters = [reports.counter(minute=moment) for _ in range(number)]
        reports.count_up(at, *counters)


def start(code: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (sys.executable, "-c", f"import django; django.setup()\n{code}"),
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def make(environment: dict[str, str]) -> float:
    """Make all that is asked for; give the seconds it took."""
    began = time.monotonic()
    with start(WHOLE_NIGHT, environment) as process:
        assert process.wait(120) == 0
    return time.monotonic() - began


def ask() -> Run:
    return Run.objects.unfinished().first() or requests.queue(
        first_day=FIRST, last_day=LAST, actor=ANNA, now=clock.now()
    )


def kill(process: subprocess.Popen[str]) -> None:
    with process:
        process.send_signal(signal.SIGKILL)


def test_no_kill_shows_a_part_of_a_report(lake: dict[str, str]) -> None:
    happen(20)
    ask()
    seconds = make(lake)
    before = published()
    happen(5)
    seen = [killed_after(lake, random.uniform(0.3, seconds)) for _ in range(NIGHTS)]
    run, told = staged(lake)
    keep_staged()
    last_step = LAST_STEP.format(run=run.pk, told=told)
    seconds = publish(last_step, lake)
    after = published()

    again = [
        killed_publishing(run, last_step, lake, seconds) for _ in range(LAST_STEPS)
    ]

    assert before != after
    assert set(seen) <= {before, after}
    assert set(again) == {after}


def killed_after(environment: dict[str, str], seconds: float) -> str:
    """Begin a night, kill it, and give what everybody sees."""
    ask()
    process = start(WHOLE_NIGHT, environment)
    time.sleep(seconds)
    kill(process)
    return published()


def killed_publishing(
    run: Run, last_step: str, environment: dict[str, str], seconds: float
) -> str:
    stage_again(run)
    process = start(last_step, environment)
    assert process.stdout
    assert process.stdout.readline() == "begun\n"
    time.sleep(random.uniform(0, seconds))
    kill(process)
    return published()


def staged(environment: dict[str, str]) -> tuple[Run, dict[str, int]]:
    """Let the job do its part of a run, and nobody publish it."""
    run = ask()
    code = STAGE.format(run=run.pk)
    with start(code, environment) as process:
        assert process.stdout
        told = process.stdout.read()
    return Run.objects.get(pk=run.pk), json.loads(told)


def publish(last_step: str, environment: dict[str, str]) -> float:
    """Carry out the last step; give the seconds that it took after its word."""
    with start(last_step, environment) as process:
        assert process.stdout
        process.stdout.readline()
        began = time.monotonic()
        assert process.wait(60) == 0
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
