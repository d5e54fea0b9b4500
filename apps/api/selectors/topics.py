"""Read topics, with their lanes and the messages that these could not capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from apps.api.keyset_pagination import Page, PageWindow
from apps.brokers.models import Topic
from apps.capture import topic_and_lane_configuration
from apps.capture.models import HeldDeadLetter, Lane, OversizeMessage
from apps.team.rights import Principal


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneDetail:
    lane: Lane
    is_heard: bool
    held_count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicDetail:
    topic: Topic
    lane: LaneDetail | None
    oversize_count: int


def find(
    window: PageWindow,
    *,
    topic: str | None,
    broker: str | None,
    principal: Principal,
    now: datetime,
) -> tuple[Page[Topic], list[TopicDetail]]:
    """List the topics that a principal sees: all, or one, or those of one broker."""
    rows = Topic.objects.matching(principal.topics)
    if topic:
        rows = rows.filter(name=topic)
    if broker:
        rows = rows.filter(broker__name=broker)
    rows = rows.select_related("broker", "lane").order_by("pk")
    page = window.page(rows)
    return page, _details(page.rows, now=now)


def one(name: str, principal: Principal, *, now: datetime) -> TopicDetail:
    """Find a topic by name that this principal may see; raises Absent otherwise."""
    topic = topic_and_lane_configuration.visible_topic(name=name, principal=principal)
    return detail_of(topic, now=now)


def detail_of(topic: Topic, *, now: datetime) -> TopicDetail:
    return _details([topic], now=now)[0]


def _details(topics: Sequence[Topic], *, now: datetime) -> list[TopicDetail]:
    """Return each topic with its lane, and counts of its held and oversize messages."""
    held_counts, oversize_counts = (
        Counter(model.objects.filter(topic__in=topics).values_list("topic", flat=True))
        for model in (HeldDeadLetter, OversizeMessage)
    )
    return [
        TopicDetail(
            topic=topic,
            lane=_lane_of(topic, held_counts[topic.pk], now=now),
            oversize_count=oversize_counts[topic.pk],
        )
        for topic in topics
    ]


def _lane_of(topic: Topic, held_count: int, *, now: datetime) -> LaneDetail | None:
    """Return a topic's lane for the API, and if it wrote state lately; None without."""
    lane: Lane | None = getattr(topic, "lane", None)
    if lane is None:
        return None
    return LaneDetail(lane=lane, is_heard=lane.is_heard(now), held_count=held_count)
