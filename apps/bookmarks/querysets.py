"""Positions and marks, asked for in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from django.db import models

from apps.bookmarks.states import Source
from apps.brokers import topic_ids

if TYPE_CHECKING:
    from apps.bookmarks.models import BookmarkPosition, Mark


class PositionQuerySet(models.QuerySet["BookmarkPosition"]):
    def settled_here(self) -> Self:
        return self.filter(source=Source.SDK)

    def on_topics(self, patterns: Iterable[str]) -> Self:
        """Keep what a principal may see: topics by name, or by pattern with `*`."""
        return self.filter(topic_ids.matching(patterns))

    def locked(self) -> Self:
        """Lock them, in the one order that all writers keep, for this transaction."""
        return self.order_by("pk").select_for_update(of=("self",), no_key=True)


class MarkQuerySet(models.QuerySet["Mark"]):
    def locked(self) -> Self:
        """Lock them, in the one order that all writers keep, for this transaction."""
        return self.order_by("pk").select_for_update(of=("self",), no_key=True)
