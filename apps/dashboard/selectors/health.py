"""The health of lanes, worker, brokers and reports: statuses and alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from django.conf import settings
from django.urls import reverse

from apps.capture.models import Lane, LaneState
from apps.core import postgres_session_usage
from apps.dashboard.selectors.consumer_positions import lane_state
from apps.poison.models import PoisonCountCheck
from apps.reports.models import Day, Run
from apps.reports.report_run_states import RunState
from apps.reports.services.planning import is_overdue
from apps.team.rights import Principal
from apps.triage.models import WorkerBeat
from apps.triage.services import orphaned_operations_and_expired_rows

RUN = (LaneState.RUNNING, LaneState.EXPECTED, LaneState.HOLDING)
IN_TROUBLE = (LaneState.MISSING, LaneState.HOLDING, "silent")
SHOWS_WRONG_COUNTS = timedelta(days=1)
# Alarms name this many lanes, and count the others.
MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentStatus:
    component: str
    state: str
    detail: str = ""
    at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """A failure that needs a person; the page shows `at` behind `detail`."""

    component: str
    state: str
    detail: str
    href: str
    at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SystemHealth:
    """The status of each component, and the alarms that need a person."""

    statuses: list[ComponentStatus]
    alarms: list[Alarm]


@dataclass(frozen=True, kw_only=True, slots=True)
class NightlyReport:
    """The newest published report, and the last run."""

    day: Day | None
    run: Run | None
    now: datetime

    @property
    def made_at(self) -> datetime | None:
        """Return when the newest nightly report was finished; None without a report."""
        return self.day.run.finished_at if self.day else None

    @property
    def is_late(self) -> bool:
        """Tell whether the next nightly report is overdue; False before the first."""
        hour = settings.POISONWEB_REPORT_HOUR
        return self.day is not None and is_overdue(
            self.day.day, hour=hour, now=self.now
        )

    @property
    def state(self) -> str:
        """Return the state of the nightly report: failed, late, done and so on.

        Without a published report, that is the state of its newest run, or never.
        """
        if self.run and self.run.state == RunState.FAILED:
            return "failed"
        if self.is_late:
            return "late"
        if self.day:
            return "done"
        return self.run.state if self.run else "never"


def nightly_report(*, now: datetime) -> NightlyReport:
    """Load the nightly report's newest published day and newest run."""
    newest = Day.objects.select_related("run").order_by("-day").first()
    return NightlyReport(day=newest, run=Run.objects.recent_first().first(), now=now)


def check(principal: Principal, *, now: datetime) -> SystemHealth:
    """Return the status and alarms of lanes, worker, brokers and Postgres sessions."""
    possible = Lane.objects.possible()
    lanes = list(possible.order_by("topic__broker__name", "topic__name"))
    mine = [lane for lane in lanes if principal.sees(lane.topic.name)]
    worker = _worker(now=now)
    brokers = [_broker(*each, now=now) for each in _by_broker(lanes)]
    return SystemHealth(
        statuses=[_lanes(lanes, now=now), worker, *brokers],
        alarms=[
            *_alarms_of_brokers(mine, now=now),
            *_alarms_of_lanes(mine, now=now),
            *_alarms_of_worker(worker),
            *_alarms_of_sessions(),
            *_alarms_of_counts(now=now),
        ],
    )


def nightly_report_alarms(report: NightlyReport) -> list[Alarm]:
    """Return an alarm if the nightly report failed or is missing."""
    href = reverse("report-runs")
    if report.state == "failed" and report.run:
        detail = f"of {report.run.first_day} failed: {report.run.trouble}"
        return [
            Alarm(component="Nightly report", state="failed", detail=detail, href=href)
        ]
    if report.state == "late" and report.day:
        detail = f"a night is missing: the newest report is of {report.day.day}, made"
        return [
            Alarm(
                component="Nightly report",
                state="late",
                detail=detail,
                at=report.made_at,
                href=href,
            )
        ]
    return []


def _by_broker(lanes: Sequence[Lane]) -> list[tuple[str, list[Lane]]]:
    """Group lanes, which are sorted by broker, by the name of their broker."""
    groups = groupby(lanes, key=lambda lane: str(lane.topic.broker))
    return [(name, list(theirs)) for name, theirs in groups]


def _lanes(lanes: list[Lane], *, now: datetime) -> ComponentStatus:
    """Return one status for all lanes: how many run; paused lanes need not run."""
    if not lanes:
        return ComponentStatus(
            component="Lanes", state="none", detail="no dead-letter queue yet"
        )
    running = sum(lane_state(lane, now=now) in RUN for lane in lanes)
    paused = sum(lane.paused for lane in lanes)
    expected = len(lanes) - paused
    detail = f"{running} of {len(lanes)} run" + (f", {paused} paused" if paused else "")
    if not expected:
        return ComponentStatus(component="Lanes", state="resting", detail=detail)
    state = "up" if running >= expected else "partly up" if running else "stopped"
    return ComponentStatus(component="Lanes", state=state, detail=detail)


def _worker(*, now: datetime) -> ComponentStatus:
    """Return the status of the worker, from its last sign of life."""
    last = WorkerBeat.objects.values_list("at", flat=True).first()
    if last is None:
        return ComponentStatus(
            component="Worker", state="none", detail="none has answered yet"
        )
    missing = orphaned_operations_and_expired_rows.worker_missing_for(now=now)
    return ComponentStatus(
        component="Worker", state="silent" if missing else "up", at=last
    )


def _broker(name: str, lanes: list[Lane], *, now: datetime) -> ComponentStatus:
    """Return the status of a broker: away if a lane cannot reach it, up or unknown."""
    heard = [lane for lane in lanes if lane.is_heard(now)]
    away = [lane for lane in heard if lane.state == LaneState.AWAY]
    state = "away" if away else "up" if heard else "unknown"
    detail = away[0].detail if away else ""
    return ComponentStatus(component=f"Broker {name}", state=state, detail=detail)


def _alarms_of_brokers(lanes: Sequence[Lane], *, now: datetime) -> list[Alarm]:
    """Return an alarm for each broker that its lanes cannot reach."""
    away = [lane for lane in lanes if lane_state(lane, now=now) == LaneState.AWAY]
    return [
        Alarm(
            component=f"Broker {name}",
            state="away",
            detail=f"nothing is captured from {_named(theirs)}: {theirs[0].detail}",
            href=_page_of_broker(theirs[0]),
        )
        for name, theirs in _by_broker(away)
    ]


def _alarms_of_lanes(lanes: Sequence[Lane], *, now: datetime) -> list[Alarm]:
    """Return an alarm for each lane in trouble, or a single one if none runs.

    Lanes of an unreachable broker are part of the alarm of that broker.
    """
    expected = [lane for lane in lanes if not lane.paused]
    if expected and not any(lane.is_heard(now) for lane in expected):
        return [_all_stopped(expected)]
    troubled = [
        (lane, state)
        for lane in expected
        if (state := lane_state(lane, now=now)) in IN_TROUBLE
    ]
    named = [_alarm_of_lane(lane, state) for lane, state in troubled[:MOST_NAMED]]
    others = len(troubled) - len(named)
    if others:
        detail = f"{others} more are on the page of topics"
        named.append(
            Alarm(
                component="Lanes",
                state="stopped",
                detail=detail,
                href=reverse("topics"),
            )
        )
    return named


def _all_stopped(lanes: Sequence[Lane]) -> Alarm:
    """Return the alarm that no lane runs."""
    last = max((lane.seen_at for lane in lanes if lane.seen_at), default=None)
    detail = "nothing is captured; the last was heard" if last else "none has run yet"
    return Alarm(
        component="Lanes",
        state="stopped",
        detail=detail,
        at=last,
        href=f"{reverse('positions')}#lanes",
    )


def _alarm_of_lane(lane: Lane, state: str) -> Alarm:
    """Return the alarm of one lane in trouble."""
    is_silent = state == "silent"
    return Alarm(
        component=f"Lane {lane.topic.name}",
        state="stopped" if is_silent else state,
        detail="last heard" if is_silent else lane.detail,
        at=lane.seen_at if is_silent else None,
        href=reverse("topic", args=[lane.topic_id]),
    )


def _alarms_of_worker(worker: ComponentStatus) -> list[Alarm]:
    """Return an alarm if a Celery worker ran once, and has not answered lately."""
    if worker.state != "silent":
        return []
    return [
        Alarm(
            component="Worker",
            state="silent",
            detail="operations wait until one runs; the last was heard",
            at=worker.at,
            href=reverse("operations"),
        )
    ]


def _alarms_of_sessions() -> list[Alarm]:
    """Return an alarm if Postgres has few free sessions left."""
    usage = postgres_session_usage.usage()
    if not usage.is_short:
        return []
    return [
        Alarm(
            component="Sessions of Postgres",
            state="short",
            detail=f"{usage}; without one no process starts and no operation runs: "
            f"{usage.remedy}",
            href=f"{reverse('positions')}#lanes",
        )
    ]


def _alarms_of_counts(*, now: datetime) -> list[Alarm]:
    """Return an alarm if a check corrected wrong counts of messages within a day."""
    check = PoisonCountCheck.objects.filter(
        wrong__gt=0, checked_at__gt=now - SHOWS_WRONG_COUNTS
    ).first()
    if check is None:
        return []
    return [
        Alarm(
            component="Counts of messages",
            state="mended",
            detail=f"{check.wrong:,} were wrong: {check.detail}; counted again",
            at=check.checked_at,
            href=reverse("problems"),
        )
    ]


def _named(lanes: Sequence[Lane]) -> str:
    """Name the topic of one lane, or count the topics of several."""
    return lanes[0].topic.name if len(lanes) == 1 else f"{len(lanes)} topics"


def _page_of_broker(lane: Lane) -> str:
    """Return the address of the page of a lane's broker."""
    broker = lane.topic.broker_id
    return reverse("broker", args=[broker]) if broker else reverse("brokers")
