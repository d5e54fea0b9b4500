"""Time spans as people write them."""

from __future__ import annotations

import re

_CLOCK = re.compile(r"(?:(\d{1,2})\.)?(\d{1,2}):([0-5]\d):([0-5]\d(?:\.\d{1,7})?)")


def seconds_of(text: str) -> float | None:
    """Parse a duration: seconds, hh:mm:ss or d.hh:mm:ss; None for another text."""
    match = _CLOCK.fullmatch(text.strip())
    if match:
        days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    try:
        return float(text)
    except ValueError:
        return None
