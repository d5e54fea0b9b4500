"""Query sets of topics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from django.db import models

from apps.core.wildcard_patterns import any_like

if TYPE_CHECKING:
    from apps.brokers.models import Topic


class TopicQuerySet(models.QuerySet["Topic"]):
    def matching(self, patterns: Iterable[str]) -> Self:
        """Keep topics whose name matches one of these patterns."""
        return self.filter(any_like("name", patterns))
