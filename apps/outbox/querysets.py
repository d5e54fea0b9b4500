"""Queries of outboxes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from django.db import models

from apps.brokers import topic_names_to_id_filters

if TYPE_CHECKING:
    from apps.outbox.models import Outbox


class OutboxQuerySet(models.QuerySet["Outbox"]):
    def matching(self, patterns: Iterable[str]) -> Self:
        """Keep outboxes whose topic matches one of these patterns."""
        return self.filter(topic_names_to_id_filters.matching(patterns))
