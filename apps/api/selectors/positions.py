"""Read positions of consumers, with the head of their topics where a broker has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Prefetch

from apps.api.paging import Page, RowKey, Window
from apps.bookmarks.models import BookmarkPosition, Mark
from apps.bookmarks.services import reading
from apps.brokers import topic_ids
from apps.team.rights import Principal


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionDetail:
    """A position with its marks, and the head of each mark's publisher."""

    position: BookmarkPosition
    marks: Sequence[tuple[Mark, int | None]]


def find(
    window: Window, principal: Principal, *, topic: str | None, client_name: str | None
) -> tuple[Page[BookmarkPosition], list[PositionDetail]]:
    """List a page of visible positions: all, or of a topic or a client."""
    rows = BookmarkPosition.objects.on_topics(principal.topics)
    if topic is not None:
        rows = rows.filter(topic_ids.named(topic))
    if client_name is not None:
        rows = rows.filter(client_name=client_name)
    if window.after:
        rows = rows.filter(pk__gt=window.after.pk)
    marks = Prefetch("marks", Mark.objects.order_by("publisher"))
    rows = rows.select_related("topic").prefetch_related(marks).order_by("pk")
    page = window.page(rows, lambda row: RowKey(pk=row.pk))
    return page, _details(page.rows)


def _details(positions: Sequence[BookmarkPosition]) -> list[PositionDetail]:
    """Pair the marks of positions with the heads of their topics."""
    heads = reading.heads(topics={position.topic_id for position in positions})
    return [
        PositionDetail(
            position=position,
            marks=[
                (mark, heads.get((position.topic_id, mark.publisher)))
                for mark in position.marks.all()
            ],
        )
        for position in positions
    ]
