"""Whether what does the work is there, in the words of people: one sign for each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from django.conf import settings

from apps.capture.models import Lane, LaneState
from apps.dashboard.selectors.positions import lane_state
from apps.reports.models import Day, Run
from apps.reports.services.planning import is_overdue
from apps.reports.states import State
from apps.team.rights import Principal
from apps.triage.models import WorkerBeat
from apps.triage.services import upkeep

RUN = (LaneState.RUNNING, LaneState.EXPECTED, LaneState.HOLDING)
IN_TROUBLE = (LaneState.MISSING, LaneState.HOLDING)
MOST_IN_TROUBLE = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    what: str
    state: str
    told: str = ""
    at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Night:
    """The newest report there is, and what became of the last run."""

    day: Day | None
    run: Run | None
    now: datetime

    @property
    def made_at(self) -> datetime | None:
        return self.day.run.finished_at if self.day else None

    @property
    def is_late(self) -> bool:
        hour = settings.POISONWEB_REPORT_HOUR
        return self.day is not None and is_overdue(
            self.day.day, hour=hour, now=self.now
        )

    @property
    def state(self) -> str:
        """Say it in one word, the worst first."""
        if self.run and self.run.state == State.FAILED:
            return "failed"
        if self.is_late:
            return "late"
        if self.day:
            return "done"
        return self.run.state if self.run else "never"


def night(*, now: datetime) -> Night:
    newest = Day.objects.select_related("run").order_by("-day").first()
    return Night(day=newest, run=Run.objects.recent_first().first(), now=now)


def signs(principal: Principal, *, now: datetime) -> list[Sign]:
    known = Lane.objects.select_related("topic__broker")
    lanes = list(known.order_by("topic__broker__name", "topic__name"))
    by_broker = groupby(lanes, key=lambda lane: str(lane.topic.broker))
    return [
        _lanes(lanes, now=now),
        _worker(now=now),
        *(_broker(name, list(theirs), now=now) for name, theirs in by_broker),
        *_in_trouble([lane for lane in lanes if lane.is_heard(now)], principal),
    ]


def _lanes(lanes: list[Lane], *, now: datetime) -> Sign:
    running = sum(lane_state(lane, now=now) in RUN for lane in lanes)
    if not lanes:
        return Sign(what="Lanes", state="none", told="no dead-letter queue yet")
    state = "up" if running == len(lanes) else "behind"
    return Sign(what="Lanes", state=state, told=f"{running} of {len(lanes)} run")


def _worker(*, now: datetime) -> Sign:
    last = WorkerBeat.objects.values_list("at", flat=True).first()
    if last is None:
        return Sign(what="Worker", state="none", told="none has answered yet")
    missing = upkeep.worker_missing_for(now=now)
    return Sign(what="Worker", state="silent" if missing else "up", at=last)


def _broker(name: str, lanes: list[Lane], *, now: datetime) -> Sign:
    """Say of a broker what its lanes say; the worst of them counts."""
    heard = [lane for lane in lanes if lane.is_heard(now)]
    away = [lane for lane in heard if lane.state == LaneState.AWAY]
    state = "away" if away else "up" if heard else "unknown"
    told = away[0].detail if away else ""
    return Sign(what=f"Broker {name}", state=state, told=told)


def _in_trouble(lanes: list[Lane], principal: Principal) -> list[Sign]:
    """Name the lanes whose broker answers, and that still cannot do all their work."""
    signs = [
        Sign(what=f"Lane {lane.topic.name}", state=lane.state, told=lane.detail)
        for lane in lanes
        if lane.state in IN_TROUBLE and principal.sees(lane.topic.name)
    ]
    return signs[:MOST_IN_TROUBLE]
