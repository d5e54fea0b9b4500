"""Positions of consumers, and the answers to opening and settling them."""

from __future__ import annotations

from apps.api.selectors.positions import PositionDetail
from apps.api.shapes.base import Shape
from apps.bookmarks.services.opening import OpenedPositions
from apps.bookmarks.services.settling import SettleAnswer


def position(detail: PositionDetail) -> Shape:
    """Show a position with its marks and the head of its topic."""
    row = detail.position
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
            for mark, head in detail.marks
        ],
    }


def opened(result: OpenedPositions) -> Shape:
    """Show opened positions, from which a consumer resumes."""
    return {
        "epoch": result.epoch,
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
            for row in result.positions
            for mark in row.marks.all()
        ],
    }


def settled(answer: SettleAnswer) -> Shape:
    """Show the answer to one settle of a batch."""
    members: Shape = {
        "status": answer.status.value,
        "detail": answer.detail,
        "pointer": answer.pointer,
        "pressure": answer.pressure,
    }
    return {name: value for name, value in members.items() if value is not None}
