"""The preview of an operation: what it would do, before it is confirmed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from apps.api.shapes.base import Shape, name_of
from apps.api.shapes.poisons import poison
from apps.core.timeouts import TooSlow
from apps.triage.models import Operation
from apps.triage.services.previews import PreviewSummary


def preview(row: Operation, selected: PreviewSummary, *, now: datetime) -> Shape:
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
        "will_act": selected.will_act,
        "newer": selected.newer,
        "skipped": [
            {"reason": why, "count": number} for why, number in selected.skipped
        ],
        "breakdown": {
            "topics": _named(selected.by_topic),
            "consumer_groups": _named(selected.by_consumer),
        },
        "left_out": None
        if isinstance(selected.left_out, TooSlow)
        else _named(selected.left_out),
        "elsewhere": [
            {"failed_in": each.origin, "sent_to": each.topic, "count": each.number}
            for each in selected.elsewhere
        ],
        "sample": [poison(each, now=now) for each in selected.sample],
    }


def _named(pairs: Iterable[tuple[str, int]]) -> list[Shape]:
    return [{"name": name, "count": number} for name, number in pairs]
