"""The answer to one member of a report."""

from __future__ import annotations

from apps.api.response_dicts.json_object_type import Shape
from apps.capture.intake.services import CaptureAnswer


def answer(row: CaptureAnswer) -> Shape:
    """Return the answer to a consumer's report as a dict, without empty members."""
    members: Shape = {
        "status": row.status.value,
        "poison": row.poison,
        "detail": row.detail,
        "pointer": row.pointer,
    }
    return {name: value for name, value in members.items() if value is not None}
