"""Topics, their policies, and how their lanes are."""

from __future__ import annotations

from datetime import datetime

from apps.api.selectors.topics import TopicSeen
from apps.api.shapes.base import Shape
from apps.capture.models import Lane


def topic(seen: TopicSeen, *, now: datetime) -> Shape:
    row = seen.topic
    return {
        "id": row.pk,
        "name": row.name,
        "broker": row.broker and row.broker.name,
        "native_name": row.native_name,
        "dead_letter_queue": row.dead_letter_queue,
        "max_dequeue_count": row.max_dequeue_count,
        "visibility_timeout": row.visibility_timeout,
        "retention_days": row.retention_days,
        "owner": row.owner,
        "runbook": row.runbook,
        "options": row.options,
        "oversize": seen.oversize,
        "lane": seen.lane and lane(seen.lane, held=seen.held, now=now),
    }


def lane(row: Lane, *, held: int, now: datetime) -> Shape:
    return {
        "mode": row.mode,
        "tee_queue": row.tee_queue,
        "paused": row.paused,
        "state": row.state,
        "heard": row.is_heard(now),
        "detail": row.detail,
        "seen_at": row.seen_at,
        "depth": row.depth,
        "oldest_at": row.oldest_at,
        "captured": row.captured,
        "rate": row.rate,
        "held": held,
        "error": row.error,
        "error_at": row.error_at,
    }
