"""Make a report in this process, after the runs that must end first.

Reports are made one at a time, and unfinished runs never share a day. A run in the way
that no worker runs is run here, so that the wait always ends. Celery tasks do not use
this module: a worker never waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

from apps.core import advisory_locks
from apps.core.actor import Actor
from apps.reports.errors import RunInTheWay
from apps.reports.models import Run
from apps.reports.report_run_states import FINISHED, RunState
from apps.reports.services import report_requests, report_run_execution
from apps.reports.services.report_run_execution import LOCK, Clock

POLL_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitPolicy:
    """Wait for other runs, and `notify` once of each; or raise RunInTheWay instead."""

    clock: Clock
    notify: Callable[[Run], None]
    wait: bool


def make(
    *, first_day: date, last_day: date, actor: Actor, source: str, policy: WaitPolicy
) -> Run:
    """Return the finished report run that made these days now or later.

    Raises what `report_requests.request` raises; RunInTheWay only if `policy` has no
    `wait`.
    """
    if not policy.wait and advisory_locks.names_locked([LOCK]):
        _refuse_to_wait(_current_run())
    while True:
        try:
            run = report_requests.request(
                first_day=first_day,
                last_day=last_day,
                actor=actor,
                source=source,
                now=policy.clock(),
            )
        except RunInTheWay as obstacle:
            other = _wait_for(obstacle.run_id, policy)
            if other and _covers(other, first_day, last_day):
                return other
        else:
            return _finish(run, policy)


def _wait_for(run_id: int | None, policy: WaitPolicy) -> Run | None:
    """Wait for the end of the report run in the way, or run it here.

    Return it if it started again meanwhile, and published; else None.
    """
    if run_id is None:
        return None
    other = Run.objects.get(pk=run_id)
    result = _finish(other, policy)
    # A later epoch is a later start: its snapshot has all rows of now.
    return (
        result if result.state == RunState.DONE and result.epoch > other.epoch else None
    )


def _covers(run: Run, first: date, last: date) -> bool:
    """Tell whether the report run makes all of these days."""
    return run.first_day <= first and last <= run.last_day


def _finish(run: Run, policy: WaitPolicy) -> Run:
    """Finish a report run here, or wait while other processes run one."""
    notified: int | None = None
    while (current := Run.objects.get(pk=run.pk)).state not in FINISHED:
        if not advisory_locks.names_locked([LOCK]):
            report_run_execution.run(run_id=run.pk, clock=policy.clock)
            continue
        obstacle = _current_run() or current
        if not policy.wait:
            _refuse_to_wait(obstacle)
        if obstacle.pk != notified:
            policy.notify(obstacle)
            notified = obstacle.pk
        time.sleep(POLL_SECONDS)
    return current


def _current_run() -> Run | None:
    """Return the report run at work: of several `running`, the last started."""
    claims = Run.objects.filter(state=RunState.RUNNING)
    return claims.order_by("-started_at").first()


def _refuse_to_wait(obstacle: Run | None) -> None:
    """Raise RunInTheWay, which names the report run that is being made."""
    which = f"run {obstacle.pk}" if obstacle else "another run"
    raise RunInTheWay(
        f"{which} is being made, and reports are made one at a time",
        run_id=obstacle.pk if obstacle else None,
    )
