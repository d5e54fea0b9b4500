"""Find the topics whose messages may call an endpoint."""

from __future__ import annotations

from collections.abc import Sequence

from apps.brokers.models import Topic
from apps.core.wildcard_patterns import matches
from apps.redelivery.models import Endpoint
from apps.team.rights import Principal

# Of all topics with requests, so many are looked at.
MOST = 1_000


def topics_that_call(
    endpoints: Sequence[Endpoint], principal: Principal
) -> dict[int, list[Topic]]:
    """Return the visible topics that may call each endpoint, with their lanes."""
    visible = Topic.objects.matching(principal.topics).exclude(request_endpoints=[])
    topics = list(visible.select_related("lane").order_by("name")[:MOST])
    return {
        endpoint.pk: [
            topic
            for topic in topics
            if any(
                matches(pattern, endpoint.name) for pattern in topic.request_endpoints
            )
        ]
        for endpoint in endpoints
    }
