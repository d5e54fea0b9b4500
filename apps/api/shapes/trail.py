"""Entries of the audit trail, and the result of its verification."""

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


def verdict(result: ChainVerdict) -> Shape:
    return {
        "entries": result.entries,
        "ok": result.ok,
        "first_bad": result.first_bad,
        "head": result.head,
        "troubles": list(result.troubles),
    }
