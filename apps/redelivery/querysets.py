"""Queries of endpoints and deliveries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from django.db import models

from apps.brokers import topic_names_to_id_filters
from apps.brokers.models import Topic

if TYPE_CHECKING:
    from apps.redelivery.models import Delivery, Endpoint


class EndpointQuerySet(models.QuerySet["Endpoint"]):
    def matching(self, patterns: Iterable[str]) -> Self:
        """Keep endpoints whose topic matches one of these patterns."""
        return self.filter(topic_names_to_id_filters.matching(patterns))

    def with_related_rows(self) -> Self:
        """Load endpoints with the rows that their settings and breakers refer to."""
        return self.select_related(
            *("topic", "activity"),
            *("forward_topic", "forward_endpoint", "response_hook"),
        )


class DeliveryQuerySet(models.QuerySet["Delivery"]):
    def on_endpoints(self, patterns: Iterable[str]) -> Self:
        """Keep deliveries of endpoints whose topic matches one of these patterns."""
        topics = Topic.objects.matching(patterns).exclude(endpoint=None)
        return self.filter(endpoint__in=list(topics.values_list("endpoint", flat=True)))

    def recent_first(self) -> Self:
        """Order deliveries by acceptance, the latest first; ids are in that order."""
        return self.order_by("-id")
