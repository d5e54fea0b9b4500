"""Template tags of the position pages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from django import template

from apps.bookmarks import runs_of_settled_positions

register = template.Library()
register.filter(runs_of_settled_positions.watermark)
register.filter(runs_of_settled_positions.size)

UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@register.filter
def span(time: timedelta | None) -> str:
    """Format a consumer position's duration in its largest unit: 3 h; "" for None."""
    if time is None:
        return ""
    seconds = time.total_seconds()
    size, unit = next(((s, u) for s, u in UNITS if seconds >= s), (1, "s"))
    return f"{seconds / size:.0f}\u00a0{unit}"


@register.filter
def place(seq: int) -> str:
    """Format a consumer position's sequence number; "the start" if negative.

    That is the start of the topic.
    """
    return "the start" if seq < 0 else str(seq)


@register.filter
def first_few(items: Sequence[object]) -> Sequence[object]:
    return items[:20]
