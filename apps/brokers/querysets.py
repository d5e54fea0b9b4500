"""Query sets of topics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from django.db import models

from apps.core.patterns import any_like

if TYPE_CHECKING:
    from apps.brokers.models import Topic


class TopicQuerySet(models.QuerySet["Topic"]):
    def drained(self) -> Self:
        return self.filter(broker__isnull=False).exclude(dead_letter_queue="")

    def matching(self, patterns: Iterable[str]) -> Self:
        return self.filter(any_like("name", patterns))
