"""Names and patterns of topics, resolved to ids before a large table is asked.

Behind a join by name Postgres cannot see which topic is meant, nor how few rows it has:
it walks the newest rows of all topics. With the id it takes the index of that topic.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Q

from apps.brokers.models import Topic

EVERY_TOPIC = "*"


def matching(patterns: Iterable[str]) -> Q:
    """Select the rows of all topics that match one of these patterns now."""
    patterns = tuple(patterns)
    if EVERY_TOPIC in patterns:
        return Q()
    topics = Topic.objects.matching(patterns)
    return Q(topic_id__in=list(topics.values_list("pk", flat=True)))


def named(name: str) -> Q:
    """Select the rows of the topic with this very name: a star in it is a star."""
    topics = Topic.objects.filter(name=name)
    return Q(topic_id__in=list(topics.values_list("pk", flat=True)))
