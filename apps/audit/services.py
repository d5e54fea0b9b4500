"""Append to the chain of decisions, and check that nobody has touched it.

The chain is that of RFC 9162's ancestors: each hash covers the text before it, so an
edit, a cut or a swap shows from its place to the end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.db import connection, transaction

from apps.core.actor import Actor
from apps.core.text import storable


class Action(StrEnum):
    """Every decision that is put on record, as subject.verb."""

    OPERATION_CONFIRMED = "operation.confirmed"
    OPERATION_FINISHED = "operation.finished"
    BODY_REVEALED = "body.revealed"
    KEY_CREATED = "api_key.created"
    KEY_REVOKED = "api_key.revoked"
    USER_CREATED = "user.created"
    USER_ALTERED = "user.altered"
    SESSIONS_ENDED = "user.sessions_ended"
    USER_SIGNED_IN = "user.signed_in"
    USER_SIGNED_OUT = "user.signed_out"
    SIGN_IN_FAILED = "user.sign_in_failed"
    SIGN_INS_SUSPICIOUS = "user.sign_ins_suspicious"
    PASSWORD_SET = "user.password_set"  # noqa: S105 - the name of an action
    TOPIC_REGISTERED = "topic.registered"
    TOPIC_ALTERED = "topic.altered"
    TOPIC_REMOVED = "topic.removed"
    BROKER_REGISTERED = "broker.registered"
    BROKER_ALTERED = "broker.altered"
    BROKER_REMOVED = "broker.removed"
    LANE_SET = "lane.set"
    LANE_PAUSED = "lane.paused"
    LANE_RESUMED = "lane.resumed"
    REPORT_REQUESTED = "report.requested"
    SKIP_ADDED = "skip.added"
    SKIP_REMOVED = "skip.removed"
    POSITION_MOVED = "position.moved"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a walk along the chain found; `first_bad` is the first seq that lies."""

    entries: int
    ok: bool
    first_bad: int | None
    head: str


@transaction.atomic
def record(
    *,
    action: Action,
    subject: str,
    actor: Actor,
    now: datetime,
    reason: str = "",
    source: str = "system",
    detail: Mapping[str, Any] | None = None,
) -> int:
    """Append one decision and give its number in the chain.

    Call it last in the transaction that carries the decision out: it locks the head of
    the chain until that transaction ends.
    """
    with connection.cursor() as cursor:
        cursor.execute(_ADVANCE)
        seq, before = cursor.fetchone()
        text = _canonical(
            {
                "seq": seq,
                "at_us": int(now.timestamp() * 1_000_000),
                "actor": str(actor),
                "action": action.value,
                "subject": subject,
                "reason": reason,
                "source": source,
                "detail": dict(detail or {}),
            }
        )
        chained = hashlib.sha256(bytes(before) + text.encode("ascii")).digest()
        cursor.execute(_APPEND, {"seq": seq, "record": text, "hash": chained})
    return int(seq)


_ADVANCE = "UPDATE audit_head SET seq = seq + 1 RETURNING seq, hash"

_APPEND = """
WITH appended AS (
    INSERT INTO audit_entry (seq, record, hash) VALUES (%(seq)s, %(record)s, %(hash)s)
)
UPDATE audit_head SET hash = %(hash)s
"""


def verify() -> Verdict:
    """Recompute the whole chain in the database; name the first seq that lies."""
    with connection.cursor() as cursor:
        cursor.execute(_VERIFY)
        entries, first_bad, head_seq, last_seq, head = cursor.fetchone()
    if first_bad is None and last_seq != head_seq:
        first_bad = min(last_seq, head_seq) + 1
    return Verdict(
        entries=entries,
        ok=first_bad is None,
        first_bad=first_bad,
        head=bytes(head).hex(),
    )


_VERIFY = """
WITH walked AS (
    SELECT seq, hash, record,
           lag(hash, 1, sha256('poisonweb')) OVER along AS before,
           row_number() OVER along AS place
    FROM audit_entry WINDOW along AS (ORDER BY seq)
), judged AS (
    SELECT seq, place,
           hash = sha256(before || convert_to(record, 'UTF8'))
           AND seq = place AND (record::jsonb ->> 'seq')::bigint = seq AS holds
    FROM walked
)
SELECT (SELECT count(*) FROM judged),
       coalesce((SELECT min(place) FROM judged WHERE holds IS NOT TRUE),
                (SELECT place FROM walked JOIN audit_head ON audit_head.seq = place
                 WHERE walked.hash <> audit_head.hash)),
       (SELECT seq FROM audit_head),
       (SELECT coalesce(max(place), 0) FROM judged),
       (SELECT hash FROM audit_head)
"""


def _canonical(value: Mapping[str, Any]) -> str:
    """Sorted, ASCII, no spaces: the same decision is the same text everywhere."""
    clean = json.loads(json.dumps(value), object_pairs_hook=_storable_members)
    return json.dumps(clean, sort_keys=True, separators=(",", ":"))


def _storable_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # jsonb refuses NUL and lone surrogates; the generated columns read this as jsonb.
    return {
        storable(name): storable(item) if isinstance(item, str) else item
        for name, item in pairs
    }
