"""The audit trail, and whether it is whole."""

from __future__ import annotations

from apps.api.shapes.base import Shape
from apps.audit.models import Entry
from apps.audit.verification import ChainVerdict


def entry(row: Entry) -> Shape:
    return {
        "seq": row.seq,
        "at": row.at,
        "actor": row.actor,
        "action": row.action,
        "subject": row.subject,
        "reason": row.reason,
        "source": row.source,
        "detail": row.detail,
        "hash": bytes(row.hash).hex(),
    }


def verdict(told: ChainVerdict) -> Shape:
    return {
        "entries": told.entries,
        "ok": told.ok,
        "first_bad": told.first_bad,
        "head": told.head,
        "troubles": list(told.troubles),
    }
