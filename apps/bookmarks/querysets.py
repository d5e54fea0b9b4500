"""Positions and marks, asked for in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from django.db import models
from django.db.models import Q

from apps.bookmarks.states import Source
from apps.core.patterns import like

if TYPE_CHECKING:
    from apps.bookmarks.models import BookmarkPosition, Mark


class PositionQuerySet(models.QuerySet["BookmarkPosition"]):
    def settled_here(self) -> Self:
        return self.filter(source=Source.SDK)

    def on_topics(self, patterns: Iterable[str]) -> Self:
        """Keep what a principal may see: topics by name, or by pattern with `*`."""
        if "*" in (patterns := tuple(patterns)):
            return self
        wanted = Q(pk__in=[])
        for pattern in patterns:
            wanted |= Q(topic__name__like=like(pattern))
        return self.filter(wanted)

    def locked(self) -> Self:
        """Lock them, in the one order that all writers keep, for this transaction."""
        return self.order_by("pk").select_for_update(of=("self",), no_key=True)


class MarkQuerySet(models.QuerySet["Mark"]):
    def locked(self) -> Self:
        """Lock them, in the one order that all writers keep, for this transaction."""
        return self.order_by("pk").select_for_update(of=("self",), no_key=True)
