"""The outboxes that need a person: sick ones, and those with quarantined rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from django.db.models import Count, Q
from django.urls import reverse
from django.utils.text import Truncator

from apps.core.statement_timeouts import TooSlow, unless_slow
from apps.dashboard.presentation.plurals import counted_noun
from apps.dashboard.selectors.health import MOST_NAMED, Alarm, ComponentStatus
from apps.outbox.models import SWEEPER_LIVES, Outbox, OutboxActivity
from apps.outbox.querysets import OutboxQuerySet
from apps.outbox.sweeper_and_row_states import SweeperState
from apps.outbox.sweeper_state_for_pages import SILENT, has_old_counts, state_of
from apps.team.rights import Principal, Scope

SICK = (SweeperState.BROKEN, SweeperState.UNREACHABLE)
LONGEST_REASON = 160


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxesInNeed:
    """The outboxes on the overview; all is empty where a principal sees no outbox.

    `quarantined` are those with quarantined rows, most of them first, and `others` how
    many more there are. Without `is_whole`, Postgres took too long to look.
    """

    statuses: list[ComponentStatus] = field(default_factory=list)
    alarms: list[Alarm] = field(default_factory=list)
    quarantined: list[Outbox] = field(default_factory=list)
    others: int = 0
    is_whole: bool = True


def find(principal: Principal, *, now: datetime) -> OutboxesInNeed:
    """Find the outboxes that need a person, among those that the principal sees."""
    if not principal.may(Scope.BROKERS_READ):
        return OutboxesInNeed()
    if not Outbox.objects.exists():  # often, and quick to tell
        return OutboxesInNeed()
    outboxes = unless_slow(partial(_find, principal, now=now))
    if isinstance(outboxes, TooSlow):
        return OutboxesInNeed(is_whole=False)
    return outboxes


def _find(principal: Principal, *, now: datetime) -> OutboxesInNeed:
    visible = Outbox.objects.matching(principal.topics)
    is_sick, has_quarantined = _is_sick(now), Q(activity__quarantined__gt=0)
    counts = visible.aggregate(
        total=Count("pk"),
        paused=Count("pk", filter=Q(is_paused=True)),
        sick=Count("pk", filter=is_sick),
        quarantined=Count("pk", filter=has_quarantined),
    )
    if not counts["total"]:
        return OutboxesInNeed()
    quarantined = _first(visible.filter(has_quarantined), "-activity__quarantined")
    return OutboxesInNeed(
        statuses=[_status(counts)],
        alarms=_alarms(visible.filter(is_sick), counts["sick"], now=now),
        quarantined=quarantined,
        others=counts["quarantined"] - len(quarantined),
    )


def _is_sick(now: datetime) -> Q:
    """Match outboxes that are not paused, and broken, unreachable or silent.

    As `state_of` calls them. A sweeper has time to make its first note after its outbox
    is added.
    """
    last_note = now - SWEEPER_LIVES
    is_silent = Q(activity__noted_at__lt=last_note) | Q(
        activity__noted_at=None, created_at__lt=last_note
    )
    is_failing = Q(activity__noted_at__isnull=False, activity__state__in=SICK)
    return Q(is_paused=False) & (is_silent | is_failing)


def _first(outboxes: OutboxQuerySet, *order: str) -> list[Outbox]:
    related = outboxes.select_related("activity")
    return list(related.order_by(*order, "name")[:MOST_NAMED])


def _status(counts: dict[str, int]) -> ComponentStatus:
    """Summarize for the overview how many outboxes are swept, how many paused."""
    expected = counts["total"] - counts["paused"]
    swept = expected - counts["sick"]
    detail = f"{swept} of {counts['total']} swept"
    if counts["paused"]:
        detail += f", {counts['paused']} paused"
    if not expected:
        return ComponentStatus(component="Outboxes", state="resting", detail=detail)
    state = "up" if swept == expected else "partly up" if swept else "stopped"
    return ComponentStatus(component="Outboxes", state=state, detail=detail)


def _alarms(sick: OutboxQuerySet, number: int, *, now: datetime) -> list[Alarm]:
    """Build an alarm for each of the first sick outboxes, and one for the rest.

    That one counts them.
    """
    if not number:
        return []
    alarms = [_alarm(outbox, now=now) for outbox in _first(sick)]
    if others := number - len(alarms):
        alarms.append(
            Alarm(
                component="Outboxes",
                state=SweeperState.BROKEN,
                detail=f"{others} more are on the page of outboxes",
                href=reverse("outboxes"),
            )
        )
    return alarms


def _alarm(outbox: Outbox, *, now: datetime) -> Alarm:
    """Build the alarm of a sick outbox: why, how many rows wait, and since when.

    A count that is not of now comes with its time.
    """
    state, activity = state_of(outbox, now=now), outbox.activity
    detail, at = _reason(state, activity), activity.oldest_at
    if at is not None:
        detail = f"{detail}; {_rows(activity, now=now)}, the oldest was written"
    elif state == SILENT and activity.noted_at is not None:
        detail, at = "the last note of its sweeper was", activity.noted_at
    elif activity.counted_at is not None:
        detail, at = f"{detail}; no row waited at the last count,", activity.counted_at
    else:
        detail = f"{detail}; what waits was not counted yet"
    return Alarm(
        component=f"Outbox {outbox.name}",
        state=state,
        detail=detail,
        at=at,
        href=reverse("outbox", args=[outbox.pk]),
    )


def _rows(activity: OutboxActivity, *, now: datetime) -> str:
    """Say how many rows wait, or how many waited when they were counted last."""
    rows = counted_noun(activity.waiting, "row")
    if has_old_counts(activity, now=now):
        return f"{rows} waited at {activity.counted_at:%Y-%m-%d %H:%M} UTC"
    return f"{rows} {'waits' if activity.waiting == 1 else 'wait'}"


def _reason(state: str, activity: OutboxActivity) -> str:
    if state != SILENT:
        return Truncator(activity.detail).chars(LONGEST_REASON).rstrip(".")
    return "its sweeper notes nothing" + ("" if activity.noted_at else " yet")
