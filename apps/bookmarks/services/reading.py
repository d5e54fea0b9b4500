"""What brokers tell of where a topic ends, for readers whose position is kept here."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import Max

from apps.bookmarks.models import Mark

# A topic and a publisher.
Line = tuple[int, str]


def heads(*, topics: Collection[int]) -> dict[Line, int]:
    """Give the newest number of each publisher, where a broker told it."""
    told = Mark.objects.filter(position__topic__in=topics, head__isnull=False)
    ends = told.order_by().values_list("position__topic", "publisher")
    return {
        (topic, publisher): head
        for topic, publisher, head in ends.annotate(newest=Max("head"))
    }
