"""Read the heads of topics, as brokers report them."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import Max

from apps.bookmarks.models import Mark

# A topic and a publisher.
TopicPublisher = tuple[int, str]


def heads(*, topics: Collection[int]) -> dict[TopicPublisher, int]:
    """Map each topic and publisher to the newest number, as the topic's broker said."""
    marks = Mark.objects.filter(position__topic__in=topics, head__isnull=False)
    ends = marks.order_by().values_list("position__topic", "publisher")
    return {
        (topic, publisher): head
        for topic, publisher, head in ends.annotate(newest=Max("head"))
    }
