"""What a decision would do, before it is taken."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from apps.api.shapes.base import Shape, name_of
from apps.api.shapes.poisons import poison
from apps.core.timeouts import TooSlow
from apps.triage.models import Operation
from apps.triage.services.selection import PreviewSummary


def preview(row: Operation, seen: PreviewSummary, *, now: datetime) -> Shape:
    return {
        "token": row.token,
        "verb": row.verb,
        "q": row.query,
        "target_topic": name_of(row.target_topic),
        "ordered": row.ordered,
        "as_of": row.created_at,
        "expires_at": row.expires_at,
        "taken": row.taken,
        "total": row.total,
        "will_act": seen.will_act,
        "newer": seen.newer,
        "skipped": [{"reason": why, "count": number} for why, number in seen.skipped],
        "breakdown": {
            "topics": _named(seen.by_topic),
            "consumer_groups": _named(seen.by_consumer),
        },
        "left_out": None
        if isinstance(seen.left_out, TooSlow)
        else _named(seen.left_out),
        "elsewhere": [
            {"failed_in": each.origin, "sent_to": each.topic, "count": each.number}
            for each in seen.elsewhere
        ],
        "sample": [poison(each, now=now) for each in seen.sample],
    }


def _named(pairs: Iterable[tuple[str, int]]) -> list[Shape]:
    return [{"name": name, "count": number} for name, number in pairs]
