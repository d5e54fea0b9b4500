"""Topics, their policies, and the state of their lanes."""

from __future__ import annotations

from datetime import datetime

from apps.api.selectors.topics import TopicDetail
from apps.api.shapes.base import Shape
from apps.capture.models import Lane


def topic(detail: TopicDetail, *, now: datetime) -> Shape:
    row = detail.topic
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
        "oversize": detail.oversize_count,
        "lane": detail.lane and lane(detail.lane, detail.held_count, now=now),
    }


def lane(row: Lane, held_count: int, *, now: datetime) -> Shape:
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
        "held": held_count,
        "error": row.error,
        "error_at": row.error_at,
    }
