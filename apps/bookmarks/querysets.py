"""Querysets of positions and marks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from django.db import models

from apps.bookmarks.position_keepers import PositionSource
from apps.brokers import topic_names_to_id_filters

if TYPE_CHECKING:
    from apps.bookmarks.models import BookmarkPosition, Mark


class PositionQuerySet(models.QuerySet["BookmarkPosition"]):
    def settled_here(self) -> Self:
        """Select the positions that guards settle here, not those a broker reports."""
        return self.filter(source=PositionSource.SDK)

    def on_topics(self, patterns: Iterable[str]) -> Self:
        """Select the consumer positions on topics, by name or by pattern with `*`."""
        return self.filter(topic_names_to_id_filters.matching(patterns))

    def locked(self) -> Self:
        """Lock positions until the transaction ends, in the order of all writers."""
        return self.order_by("pk").select_for_update(of=("self",), no_key=True)


class MarkQuerySet(models.QuerySet["Mark"]):
    def locked(self) -> Self:
        """Lock marks until the transaction ends, in the order of all writers."""
        return self.order_by("pk").select_for_update(of=("self",), no_key=True)
