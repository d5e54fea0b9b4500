"""Poisons: as rows of a list, and one with its history."""

from __future__ import annotations

from datetime import datetime

from apps.api.selectors.poisons import PoisonDetail
from apps.api.serializers.trail import Entry
from apps.api.shapes.base import Shape, name_of
from apps.api.shapes.operations import operation
from apps.poison.models import Poison, Redrive
from apps.poison.reading import FailureExcerpt
from apps.triage.models import Item


def poison(row: Poison, *, now: datetime) -> Shape:
    return {
        "id": row.pk,
        "topic": row.topic.name,
        "consumer_group": row.consumer_group,
        "problem": row.problem_id,
        "message_id": row.message_id,
        "state": row.state,
        "shown": row.display_state.value,
        "silent": row.silent(now),
        "suspected": row.suspected,
        "moved_to": name_of(row.moved_to),
        "given_back": row.is_given_back,
        "cause": row.cause,
        "error_type": row.error_type,
        "error_message": row.error_message,
        "size": row.size,
        "digest": bytes(row.digest).hex(),
        "reuse": row.reuse,
        "counts": {
            "failures": row.failures,
            "attempts": row.attempts,
            "crashes": row.crashes,
            "redrives": row.redrives,
            "recurrences": row.recurrences,
        },
        "first_failed_at": row.first_failed_at,
        "last_failed_at": row.last_failed_at,
        "captured_at": row.captured_at,
        "sent_at": row.sent_at,
        "dropped_at": row.dropped_at,
    }


def poison_detail(detail: PoisonDetail, *, now: datetime) -> Shape:
    entries = detail.entries
    return {
        **poison(detail.poison, now=now),
        "bookmark": detail.poison.bookmark_text,
        "header_names": detail.header_names,
        "failures": [failure(each) for each in detail.failures],
        "redrives": [redrive(row) for row in detail.redrives],
        "operations": [operation(row) for row in detail.operations],
        "audit": None if entries is None else Entry(entries, many=True).data,
    }


def failure(detail: FailureExcerpt) -> Shape:
    row = detail.failure
    return {
        "report_id": row.report_id,
        "problem": row.problem_id,
        "redrive": row.redrive,
        "suspected": row.suspected,
        "cause": row.cause,
        "error_type": row.error_type,
        "error_message": detail.message,
        "traceback": detail.traceback,
        "cut": detail.cut,
        "client_name": row.client_name,
        "sub_id": row.sub_id,
        "host": row.host,
        "handler_version": row.handler_version,
        "attempts": row.attempts,
        "failures": row.failures,
        "crashes": row.crashes,
        "dequeue_count": row.dequeue_count,
        "first_failed_at": row.first_failed_at,
        "failed_at": row.failed_at,
        "failed_at_claimed": row.failed_at_claimed,
        "captured_at": row.captured_at,
    }


def redrive(row: Redrive) -> Shape:
    item: Item | None = getattr(row, "item", None)
    return {
        "id": row.pk,
        "n": row.n,
        "topic": row.topic.name,
        "operation": None if item is None else item.operation_id,
        "queue": row.queue or None,
        "outcome": row.outcome,
        "detail": row.detail,
        "bookmark": row.bookmark,
        "copies": row.copies,
        "claimed_at": row.claimed_at,
        "sent_at": row.sent_at,
        "answered_at": row.answered_at,
    }
