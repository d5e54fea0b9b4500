"""Make the report of a run, in a way that a kill -9 at any instant cannot harm.

1. The lock of reports is taken: one Spark at a time, whoever asks.
2. A new epoch begins; what another start of this run still does counts no more.
3. A snapshot is held, and the Spark job reads everything as that snapshot sees it.
4. What the job staged is checked against Postgres in the same snapshot.
5. All of it is published in one transaction, fenced by the epoch.

A crash before 5 leaves staged rows that nobody reads; `rescue` starts the run again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum

import psycopg
from django.db import InterfaceError, OperationalError
from django.db.models import F

from apps.core import lock, snapshot
from apps.core.lock import Lock
from apps.core.text import storable
from apps.reports import job
from apps.reports.errors import RunFailed, TakenOver
from apps.reports.models import Run
from apps.reports.services import publishing, quality
from apps.reports.states import State

log = logging.getLogger(__name__)

LOCK = "reports"
# A run whose worker died so often is what kills it: out of memory, most likely.
MOST_STARTS = 5

AWAY = (OperationalError, InterfaceError, psycopg.OperationalError)

Clock = Callable[[], datetime]


class Ended(StrEnum):
    """How a start ended: somebody else has the lock, it failed, or it is published."""

    ELSEWHERE = "elsewhere"
    FAILED = "failed"
    DONE = "done"


def run(*, run_id: int, clock: Clock) -> Ended:
    """Make and publish a run's report, unless another one is being made."""
    with lock.attempt(LOCK) as held:
        if held is None:
            return Ended.ELSEWHERE
        begun = _begin(run_id, now=clock())
        if begun is None:
            return Ended.DONE
        try:
            _make(begun, held, clock)
        except TakenOver:
            log.warning("report run %d was taken over", run_id)
            return Ended.ELSEWHERE
        except RunFailed as failure:
            return _fail(begun, failure, now=clock())
        except AWAY:
            # The run stays as it is: it is started again when Postgres is back.
            raise
        except Exception as error:
            _fail(begun, RunFailed(f"{type(error).__name__}: {error}"), now=clock())
            raise
        return Ended.DONE


def _begin(run_id: int, *, now: datetime) -> Run | None:
    this = Run.objects.filter(pk=run_id)
    if not this.transition(to=State.RUNNING, epoch=F("epoch") + 1, started_at=now):
        return None
    publishing.forget_staged()
    return this.get()


def _make(run: Run, held: Lock, clock: Clock) -> None:
    if run.epoch > MOST_STARTS:
        raise RunFailed(
            f"it was started {MOST_STARTS} times and its worker died each time; "
            "look for what ends the worker: memory, most likely"
        )
    with snapshot.held() as seen:
        same = Run.objects.filter(pk=run.pk, epoch=run.epoch)
        same.update(snapshot=seen.pg_snapshot, as_of=clock())
        order = job.Order(
            run=run.pk,
            epoch=run.epoch,
            first_day=run.first_day,
            last_day=run.last_day,
            snapshot=seen.name,
        )
        told = job.carry_out(order, may_go_on=lambda: not held.lost())
        publishing.forget_removed(run, seen)
        staged = publishing.staged(run)
        rows = quality.check(run=run, snapshot=seen, told=told)
    publishing.publish(run=run, rows=rows, staged=staged, now=clock())


def _fail(run: Run, failure: RunFailed, *, now: datetime) -> Ended:
    log.warning("report run %d failed: %s", run.pk, failure)
    Run.objects.filter(pk=run.pk, epoch=run.epoch).transition(
        to=State.FAILED,
        finished_at=now,
        trouble=storable(str(failure), limit=500),
        log=failure.log,
    )
    return Ended.FAILED
