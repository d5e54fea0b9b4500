"""How far consumers have read, and what the lanes say of themselves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet

from apps.bookmarks.models import Mark
from apps.brokers.models import LANE_LIVES, Topic
from apps.team.rights import Principal


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionRow:
    mark: Mark
    is_fresh: bool

    @property
    def state(self) -> str:
        if self.mark.lag is None or not self.is_fresh:
            return "unknown"
        return "behind" if self.mark.lag or self.mark.pending else "current"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneRow:
    topic: Topic
    state: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Positions:
    rows: list[PositionRow]
    lanes: list[LaneRow]


def find(principal: Principal, *, now: datetime) -> Positions:
    marks = Mark.objects.order_by(
        "position__topic__name", "position__consumer_group", "publisher"
    )
    drained = Topic.objects.drained().prefetch_related("held").order_by("name")
    return Positions(
        rows=[
            row
            for row in rows(marks, now=now)
            if principal.sees(row.mark.position.topic.name)
        ],
        lanes=[
            LaneRow(topic=topic, state=lane_state(topic, now=now))
            for topic in drained
            if principal.sees(topic.name)
        ],
    )


def rows(marks: QuerySet[Mark], *, now: datetime) -> list[PositionRow]:
    """Tell of each mark whether it is what its broker says by now."""
    return [
        PositionRow(mark=mark, is_fresh=now - mark.position.observed_at <= LANE_LIVES)
        for mark in marks.select_related("position__topic")
    ]


def lane_state(topic: Topic, *, now: datetime) -> str:
    if topic.lane_state != "off" and not topic.lane_is_heard(now):
        return "silent"
    return topic.lane_state
