"""The problems that poisons share."""

from __future__ import annotations

from apps.api.shapes.base import Shape
from apps.poison.models import Problem
from apps.poison.states import DisplayState


def problem(row: Problem, *, counts: dict[DisplayState, int]) -> Shape:
    return {
        "id": row.pk,
        "topic": row.topic.name,
        "consumer_group": row.consumer_group,
        "title": row.title,
        "summary": row.summary,
        "fingerprint": bytes(row.fingerprint).hex(),
        "version": row.version,
        "total": sum(counts.values()),
        "counts": {state.value: counts[state] for state in DisplayState},
        "first_seen": row.first_seen,
        "last_seen": row.last_seen,
    }
