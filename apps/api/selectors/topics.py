"""Read topics, with their lanes and the messages that these could not capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from apps.api.paging import Page, Window
from apps.api.parameters.topics import TopicParams
from apps.brokers.models import Topic
from apps.capture import topic_settings
from apps.capture.models import HeldDeadLetter, Lane, OversizeMessage
from apps.team.rights import Principal


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicDetail:
    topic: Topic
    lane: Lane | None
    held_count: int
    oversize_count: int


def find(
    window: Window, params: TopicParams, principal: Principal
) -> tuple[Page[Topic], list[TopicDetail]]:
    rows = Topic.objects.matching(principal.topics)
    if params.topic is not None:
        rows = rows.filter(name=params.topic)
    if params.broker is not None:
        rows = rows.filter(broker__name=params.broker)
    rows = rows.select_related("broker", "lane").order_by("pk")
    page = window.page(rows)
    return page, _details(page.rows)


def one(name: str, principal: Principal) -> TopicDetail:
    """Find a topic that this principal may see; raises Absent otherwise."""
    return detail_of(topic_settings.visible_topic(name=name, principal=principal))


def detail_of(topic: Topic) -> TopicDetail:
    return _details([topic])[0]


def _details(topics: Sequence[Topic]) -> list[TopicDetail]:
    held_counts, oversize_counts = (
        Counter(model.objects.filter(topic__in=topics).values_list("topic", flat=True))
        for model in (HeldDeadLetter, OversizeMessage)
    )
    return [
        TopicDetail(
            topic=topic,
            lane=getattr(topic, "lane", None),
            held_count=held_counts[topic.pk],
            oversize_count=oversize_counts[topic.pk],
        )
        for topic in topics
    ]
