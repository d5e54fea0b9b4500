"""Make the report of a run, in steps that survive a kill -9 at any instant.

1. Take the lock of reports: only one Spark job runs at a time.
2. Start a new epoch: it fences off an earlier start of this run.
3. Hold a snapshot, in which the Spark job reads everything.
4. Check the staged rows against Postgres in the same snapshot.
5. Publish all of them in one transaction, fenced by the epoch.

A crash before step 5 leaves staged rows that no query reads; `rescue` starts the run
again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum

import psycopg
from django.db import InterfaceError, OperationalError
from django.db.models import F

from apps.core import advisory_locks, shared_postgres_snapshot
from apps.core.advisory_locks import Lock
from apps.core.text_cleaning import storable
from apps.reports import spark_job_process
from apps.reports.errors import RunFailed, TakenOver
from apps.reports.models import Run
from apps.reports.report_run_states import RunState
from apps.reports.services import publishing, staged_data_checks

log = logging.getLogger(__name__)

LOCK = "reports"
# A run whose workers die this often kills them itself: out of memory, most likely.
MOST_STARTS = 5

AWAY = (OperationalError, InterfaceError, psycopg.OperationalError)

Clock = Callable[[], datetime]


class RunEnd(StrEnum):
    """How a start ended: another process has the lock, it failed, or it published."""

    ELSEWHERE = "elsewhere"
    FAILED = "failed"
    DONE = "done"


def run(*, run_id: int, clock: Clock) -> RunEnd:
    """Make and publish a run's report, unless another run is at work."""
    with advisory_locks.attempt(LOCK) as reports_lock:
        if reports_lock is None:
            return RunEnd.ELSEWHERE
        this_run = _begin(run_id, now=clock())
        if this_run is None:
            return RunEnd.DONE
        try:
            _make_report(this_run, reports_lock, clock)
        except TakenOver:
            log.warning("report run %d was taken over", run_id)
            return RunEnd.ELSEWHERE
        except RunFailed as failure:
            return _fail(this_run, failure, now=clock())
        except AWAY:
            # Leave the run unfinished: `rescue` starts it again when Postgres is back.
            raise
        except Exception as error:
            _fail(this_run, RunFailed(f"{type(error).__name__}: {error}"), now=clock())
            raise
        return RunEnd.DONE


def _begin(run_id: int, *, now: datetime) -> Run | None:
    """Mark a report run as running in a new epoch; None if it may not start."""
    this = Run.objects.filter(pk=run_id)
    if not this.transition(to=RunState.RUNNING, epoch=F("epoch") + 1, started_at=now):
        return None
    publishing.delete_staged()
    return this.get()


def _make_report(run: Run, reports_lock: Lock, clock: Clock) -> None:
    """Make a report in a snapshot, check its staged rows, and publish them."""
    if run.epoch > MOST_STARTS:
        raise RunFailed(
            f"it was started {MOST_STARTS} times and its worker died each time; "
            "look for what ends the worker: memory, most likely"
        )
    with shared_postgres_snapshot.open_snapshot() as run_snapshot:
        same = Run.objects.filter(pk=run.pk, epoch=run.epoch)
        same.update(snapshot=run_snapshot.pg_snapshot, as_of=clock())
        order = spark_job_process.JobOrder(
            run=run.pk,
            epoch=run.epoch,
            first_day=run.first_day,
            last_day=run.last_day,
            snapshot=run_snapshot.name,
        )
        rows_read = spark_job_process.carry_out(
            order, may_go_on=lambda: not reports_lock.lost()
        )
        publishing.delete_removed_topics(run, run_snapshot)
        staged = publishing.count_staged(run)
        rows = staged_data_checks.check(
            run=run, snapshot=run_snapshot, rows_read=rows_read
        )
    publishing.publish(run=run, rows=rows, staged=staged, now=clock())


def _fail(run: Run, failure: RunFailed, *, now: datetime) -> RunEnd:
    """Store why a report run failed, unless it has a newer epoch."""
    log.warning("report run %d failed: %s", run.pk, failure)
    Run.objects.filter(pk=run.pk, epoch=run.epoch).transition(
        to=RunState.FAILED,
        finished_at=now,
        trouble=storable(str(failure), limit=500),
        log=failure.log,
    )
    return RunEnd.FAILED
