"""Read positions of consumers, with the head of their topics where a broker has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Prefetch

from apps.api.keyset_pagination import Page, PageWindow
from apps.bookmarks.models import BookmarkPosition, Mark
from apps.bookmarks.services import topic_head_lookup
from apps.brokers import topic_names_to_id_filters
from apps.team.rights import Principal


@dataclass(frozen=True, kw_only=True, slots=True)
class MarkDetail:
    """A mark, and the head of its publisher, if any broker reports it."""

    mark: Mark
    head: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionDetail:
    position: BookmarkPosition
    marks: Sequence[MarkDetail]


def find(
    window: PageWindow,
    principal: Principal,
    *,
    topic: str | None,
    client_name: str | None,
) -> tuple[Page[BookmarkPosition], list[PositionDetail]]:
    """List consumer positions; a filter without text matches all."""
    rows = BookmarkPosition.objects.on_topics(principal.topics)
    if topic:
        rows = rows.filter(topic_names_to_id_filters.by_name(topic))
    if client_name:
        rows = rows.filter(client_name=client_name)
    marks = Prefetch("marks", Mark.objects.order_by("publisher"))
    rows = rows.select_related("topic").prefetch_related(marks).order_by("pk")
    page = window.page(rows)
    return page, _details(page.rows)


def _details(positions: Sequence[BookmarkPosition]) -> list[PositionDetail]:
    """Return positions with their marks, each mark beside the head of its topic."""
    heads = topic_head_lookup.heads(
        topics={position.topic_id for position in positions}
    )
    return [
        PositionDetail(
            position=position,
            marks=[
                MarkDetail(
                    mark=mark, head=heads.get((position.topic_id, mark.publisher))
                )
                for mark in position.marks.all()
            ],
        )
        for position in positions
    ]
