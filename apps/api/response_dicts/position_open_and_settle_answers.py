"""The answers to opening and settling positions."""

from __future__ import annotations

from apps.api.response_dicts.json_object_type import Shape
from apps.bookmarks.services.position_opening import OpenedPositions
from apps.bookmarks.services.position_settling import SettleAnswer


def opened_positions_dict(result: OpenedPositions) -> Shape:
    """Return opened positions as a dict: where in each topic a consumer resumes."""
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
                "resume": mark.resume_after,
                "bookmark": mark.bookmark,
            }
            for row in result.positions
            for mark in row.marks.all()
        ],
    }


def settle_answer_dict(answer: SettleAnswer) -> Shape:
    """Return the answer to one update of a settled position, without empty members."""
    members: Shape = {
        "status": answer.status.value,
        "detail": answer.detail,
        "pointer": answer.pointer,
        "pressure": answer.pressure,
    }
    return {name: value for name, value in members.items() if value is not None}
