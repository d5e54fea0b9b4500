"""The attempts of a delivery along a line of time, as attributes of SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from apps.redelivery.models import Attempt

WIDTH = 1000
# An attempt of a few milliseconds can be seen among hours.
NARROWEST = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptMark:
    """Where an attempt is on the line; `outcome` is the class of its shape."""

    number: int
    outcome: str
    x: int
    width: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeLine:
    """Attempts from left to right; a line with fewer than two shows nothing."""

    marks: Sequence[AttemptMark]
    begins_at: datetime | None
    ends_at: datetime | None

    @classmethod
    def of(cls, attempts: Sequence[Attempt]) -> Self:
        """Place a delivery's attempts on a line of time from first to last.

        The attempts may be in any order. Fewer than two give an empty line.
        """
        ordered = sorted(attempts, key=lambda attempt: attempt.number)
        if len(ordered) < 2:
            return cls(marks=[], begins_at=None, ends_at=None)
        begin = min(attempt.begun_at for attempt in ordered)
        end = max(attempt.ended_at or attempt.begun_at for attempt in ordered)
        whole = max(end - begin, timedelta(milliseconds=1))
        return cls(
            marks=[_mark(attempt, begin, whole) for attempt in ordered],
            begins_at=begin,
            ends_at=end,
        )


def _mark(attempt: Attempt, begin: datetime, whole: timedelta) -> AttemptMark:
    """Place an attempt on the time line, with its outcome and width."""
    ended_at = attempt.ended_at or attempt.begun_at
    width = max(round((ended_at - attempt.begun_at) / whole * WIDTH), NARROWEST)
    x = round((attempt.begun_at - begin) / whole * WIDTH)
    return AttemptMark(
        number=attempt.number,
        outcome=attempt.outcome,
        x=max(min(x, WIDTH - width), 0),
        width=width,
    )
