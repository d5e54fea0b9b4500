"""What several shapes share."""

from __future__ import annotations

from apps.brokers.models import Topic

Shape = dict[str, object]


def name_of(topic: Topic | None) -> str | None:
    return None if topic is None else topic.name
