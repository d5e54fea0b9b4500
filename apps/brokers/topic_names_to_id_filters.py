"""Resolve names and patterns of topics to ids before querying a large table.

Behind a join by name, Postgres does not know the topic or how few rows it has: it scans
the newest rows of all topics. With the id it uses the index of that topic.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Q

from apps.brokers.models import Topic

EVERY_TOPIC = "*"


def matching(patterns: Iterable[str]) -> Q:
    """Return a filter of rows whose topics match one of these patterns now."""
    patterns = tuple(patterns)
    if EVERY_TOPIC in patterns:
        return Q()
    topics = Topic.objects.matching(patterns)
    return Q(topic_id__in=list(topics.values_list("pk", flat=True)))


def by_name(name: str) -> Q:
    """Return a filter of rows of the topic with this exact name: a star is a star."""
    topics = Topic.objects.filter(name=name)
    return Q(topic_id__in=list(topics.values_list("pk", flat=True)))
