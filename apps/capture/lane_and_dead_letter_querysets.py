"""Querysets of lanes and of dead letters."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Self

from django.db import models

if TYPE_CHECKING:
    from apps.capture.models import Delivery, Lane


class LaneQuerySet(models.QuerySet["Lane"]):
    def possible(self) -> Self:
        """Keep lanes whose topic has a broker and a dead-letter queue; fetch both."""
        with_broker = self.filter(topic__broker__isnull=False)
        with_queue = with_broker.exclude(topic__dead_letter_queue="")
        return with_queue.select_related("topic__broker")


class LetterQuerySet(models.QuerySet["Delivery"]):
    def with_digests(self, *, topic: int, digests: Iterable[bytes]) -> Self:
        """Keep dead letters of a topic that have one of these digests."""
        return self.filter(topic=topic, digest__in=list(digests))

    def captured_before(self, moment: datetime) -> Self:
        """Keep dead letters that were captured before this time."""
        return self.filter(captured_at__lt=moment)

    def oldest_first(self) -> Self:
        """Order dead letters by the time of their capture."""
        return self.order_by("captured_at", "report_id")
