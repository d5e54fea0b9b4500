"""Make a report here and now, in its turn.

Reports are made one at a time, and unfinished runs never share a day: another run may
have to end first. One that no worker makes is made here, so it is never in the way for
ever. Celery's tasks use none of this: a worker never waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

from apps.core import lock
from apps.core.actor import Actor
from apps.reports.errors import RunInTheWay
from apps.reports.models import Run
from apps.reports.services import requests, running
from apps.reports.services.running import LOCK, Clock
from apps.reports.states import FINISHED, State

POLL_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """How a run gets its turn: `notify` is called once for each run it waits for.

    Without `wait` RunInTheWay is raised instead.
    """

    clock: Clock
    notify: Callable[[Run], None]
    wait: bool


def make(
    *, first_day: date, last_day: date, actor: Actor, source: str, turn: Turn
) -> Run:
    """Give the run, finished, that made these days as they are now or later.

    Raises what `requests.request` raises; RunInTheWay only if `turn` may not wait.
    """
    if not turn.wait and lock.names_locked([LOCK]):
        _refuse(_being_made())
    while True:
        try:
            run = requests.request(
                first_day=first_day,
                last_day=last_day,
                actor=actor,
                source=source,
                now=turn.clock(),
            )
        except RunInTheWay as obstacle:
            other = _after(obstacle.run_id, turn)
            if other and _covers(other, first_day, last_day):
                return other
        else:
            return _finished(run, turn)


def _after(run_id: int | None, turn: Turn) -> Run | None:
    """Wait for the end of another run; give it if all of it happened after this."""
    if run_id is None:
        return None
    other = Run.objects.get(pk=run_id)
    ended = _finished(other, turn)
    # A later epoch is a later start: it saw all that is there now.
    return ended if ended.state == State.DONE and ended.epoch > other.epoch else None


def _covers(run: Run, first: date, last: date) -> bool:
    return run.first_day <= first and last <= run.last_day


def _finished(run: Run, turn: Turn) -> Run:
    """Make a run, unless another process does or is at work on another one."""
    notified: int | None = None
    while (current := Run.objects.get(pk=run.pk)).state not in FINISHED:
        if not lock.names_locked([LOCK]):
            running.run(run_id=run.pk, clock=turn.clock)
            continue
        obstacle = _being_made() or current
        if not turn.wait:
            _refuse(obstacle)
        if obstacle.pk != notified:
            turn.notify(obstacle)
            notified = obstacle.pk
        time.sleep(POLL_SECONDS)
    return current


def _being_made() -> Run | None:
    """Give the run at work: of several that claim it, all but the last have died."""
    claims = Run.objects.filter(state=State.RUNNING)
    return claims.order_by("-started_at").first()


def _refuse(obstacle: Run | None) -> None:
    which = f"run {obstacle.pk}" if obstacle else "another run"
    raise RunInTheWay(
        f"{which} is being made, and reports are made one at a time",
        run_id=obstacle.pk if obstacle else None,
    )
