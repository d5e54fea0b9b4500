"""How far consumers have read, and what came of what they settled."""

from __future__ import annotations

from apps.api.selectors.positions import PositionSeen
from apps.api.shapes.base import Shape
from apps.bookmarks.services.opening import OpenedPositions
from apps.bookmarks.services.settling import SettleAnswer


def position(seen: PositionSeen) -> Shape:
    row = seen.position
    return {
        "id": row.pk,
        "source": row.source,
        "topic": row.topic.name,
        "consumer_group": row.consumer_group,
        "client_name": row.client_name,
        "sub_id": row.sub_id,
        "epoch": row.epoch,
        "observed_at": row.observed_at,
        "moved_at": row.moved_at,
        "marks": [
            {
                "publisher": mark.publisher,
                "processed": mark.processed,
                "bookmark": mark.bookmark,
                "received": mark.received,
                "persisted": mark.persisted,
                "ahead": len(mark.ahead),
                "head": head,
                "lag": mark.lag,
                "pending": mark.pending,
                "settled_at": mark.settled_at,
            }
            for mark, head in seen.marks
        ],
    }


def opened(told: OpenedPositions) -> Shape:
    return {
        "epoch": told.epoch,
        "positions": [
            {
                "position": row.pk,
                "sub_id": row.sub_id,
                "topic": row.topic.name,
                "publisher": mark.publisher,
                "processed": mark.processed,
                "persisted": mark.persisted,
                "received": mark.received,
                "settled": mark.ahead,
                "resume": mark.resume,
                "bookmark": mark.bookmark,
            }
            for row in told.positions
            for mark in row.marks.all()
        ],
    }


def settled(told: SettleAnswer) -> Shape:
    whole: Shape = {
        "status": told.status.value,
        "detail": told.detail,
        "pointer": told.pointer,
        "pressure": told.pressure,
    }
    return {name: value for name, value in whole.items() if value is not None}
