"""What a member of a report is answered."""

from __future__ import annotations

from apps.api.shapes.base import Shape
from apps.capture.intake.services import CaptureAnswer


def answer(told: CaptureAnswer) -> Shape:
    whole: Shape = {
        "status": told.status.value,
        "poison": told.poison,
        "detail": told.detail,
        "pointer": told.pointer,
    }
    return {name: value for name, value in whole.items() if value is not None}
