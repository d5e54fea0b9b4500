"""The states of consumers' guards, from their last heartbeats."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import BooleanField, Count, Q, QuerySet
from django.db.models.expressions import RawSQL

from apps.brokers.models import Topic
from apps.brokers.topic_querysets import TopicQuerySet
from apps.capture.intake.guard_heartbeats import GUARD_LIVES
from apps.capture.models import Guard
from apps.dashboard.selectors.health import ComponentStatus
from poisonguard.contract import GuardState

MOST_SHOWN = 50
# An alert names this many guards, and counts the others.
MOST_NAMED = 5
# Guards that take no message now.
IDLE = Q(state__in=[GuardState.PAUSED, GuardState.HOLDING])


# Django would take longer to write it than Postgres to answer.
_SUCCEEDED = """
capture_guard.heard_at < %s AND EXISTS (
    SELECT FROM capture_guard successor
    WHERE successor.topic_id = capture_guard.topic_id
      AND successor.consumer_group = capture_guard.consumer_group
      AND successor.client_name = capture_guard.client_name
      AND successor.host = capture_guard.host
      AND successor.id > capture_guard.id)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardRow:
    """A guard and its state; a guard is silent when its heartbeat is overdue."""

    guard: Guard
    state: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardList:
    rows: list[GuardRow]
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class IdleGuards:
    """The guards that take no message, first stopped first, and their number."""

    guards: list[Guard]
    number: int

    @property
    def others(self) -> int:
        """Count the idle guards that an alert does not list."""
        return self.number - len(self.guards)


def of_topic(topic: Topic, *, now: datetime) -> GuardList:
    """List the guards of a topic, those that take no message first."""
    lately = Q(heard_at__gte=now - GUARD_LIVES)
    # A guard that announced its stop is not missed.
    there = _without_succeeded(now=now).filter(
        lately | ~Q(state=GuardState.STOPPING), topic=topic
    )
    ordered = there.alias(is_idle=IDLE & lately).order_by(
        "-is_idle", "consumer_group", "client_name", "pk"
    )
    return GuardList(
        rows=[
            GuardRow(guard=guard, state=_guard_state(guard, now=now))
            for guard in ordered[:MOST_SHOWN]
        ],
        number=there.count(),
    )


def idle(topics: TopicQuerySet, *, now: datetime) -> IdleGuards:
    """Find the guards whose recent heartbeat says that they take no message."""
    idle_guards = Guard.objects.filter(
        IDLE, heard_at__gte=now - GUARD_LIVES, topic__in=topics
    )
    first = list(
        idle_guards.select_related("topic").order_by("since", "pk")[:MOST_NAMED]
    )
    number = len(first) if len(first) < MOST_NAMED else idle_guards.count()
    return IdleGuards(guards=first, number=number)


def statuses(topics: TopicQuerySet, *, now: datetime) -> list[ComponentStatus]:
    """Return one status for all guards of these topics; [] if there are no guards.

    Stopping guards do not count, nor silent ones that a later guard succeeded.
    """
    heard = Q(heard_at__gte=now - GUARD_LIVES)
    there = (
        _without_succeeded(now=now)
        .filter(topic__in=topics)
        .exclude(state=GuardState.STOPPING)
    )
    numbers = there.aggregate(
        total=Count("pk"),
        running=Count("pk", filter=heard & Q(state=GuardState.RUNNING)),
        idle=Count("pk", filter=heard & IDLE),
    )
    total, running = numbers["total"], numbers["running"]
    if not total:
        return []
    state = "paused" if numbers["idle"] else "up" if running == total else "silent"
    return [
        ComponentStatus(
            component="Guards", state=state, detail=f"{running} of {total} run"
        )
    ]


def _without_succeeded(*, now: datetime) -> QuerySet[Guard]:
    """Exclude silent guards that have a successor with the same name and host.

    Such a consumer died and was started again.
    """
    succeeded: RawSQL = RawSQL(  # noqa: S611 - our own text
        _SUCCEEDED, [now - GUARD_LIVES], output_field=BooleanField()
    )
    return Guard.objects.exclude(succeeded)


def _guard_state(guard: Guard, *, now: datetime) -> str:
    """Return the state of a guard; "silent" once its heartbeat is overdue."""
    return guard.state if now - guard.heard_at <= GUARD_LIVES else "silent"
