"""Append to the chain of decisions.

As in the ancestors of RFC 9162, each hash covers the text before it: an edit, a cut or
a swap breaks the chain from there to the end (`apps.audit.verification`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.db import connection, transaction

from apps.core.actor import Actor
from apps.core.errors import Invalid, Refused
from apps.core.text_cleaning import storable

# Of a reason that a person or a key gives, at every door.
REASON_LIMIT = 2_000


class Action(StrEnum):
    """The recorded decisions, as subject.verb."""

    OPERATION_CONFIRMED = "operation.confirmed"
    OPERATION_FINISHED = "operation.finished"
    OPERATION_PAUSED = "operation.paused"
    OPERATION_RESUMED = "operation.resumed"
    OPERATION_CANCEL_REQUESTED = "operation.cancel_requested"
    OPERATION_CANCELLED = "operation.cancelled"
    OPERATION_RATE_CHANGED = "operation.rate_changed"
    OPERATION_ACKNOWLEDGED = "operation.acknowledged"
    BODY_REVEALED = "body.revealed"
    KEY_CREATED = "api_key.created"
    KEY_REVOKED = "api_key.revoked"
    KEY_REFUSED = "api_key.refused"
    USER_CREATED = "user.created"
    USER_ALTERED = "user.altered"
    SESSIONS_ENDED = "user.sessions_ended"
    USER_SIGNED_IN = "user.signed_in"
    USER_SIGNED_OUT = "user.signed_out"
    SIGN_IN_FAILED = "user.sign_in_failed"
    SIGN_INS_SUSPICIOUS = "user.sign_ins_suspicious"
    SECOND_FACTOR_ADDED = "user.second_factor_added"
    SECOND_FACTOR_REMOVED = "user.second_factor_removed"
    RECOVERY_CODES_MADE = "user.recovery_codes_made"
    RECOVERY_CODE_USED = "user.recovery_code_used"
    PASSWORD_SET = "user.password_set"  # noqa: S105 - the name of an action
    TOPIC_REGISTERED = "topic.registered"
    TOPIC_ALTERED = "topic.altered"
    TOPIC_REMOVED = "topic.removed"
    BROKER_REGISTERED = "broker.registered"
    BROKER_ALTERED = "broker.altered"
    BROKER_REMOVED = "broker.removed"
    ALLOWANCE_WRITTEN = "broker.allowance_written"
    ALLOWANCE_CONFIRMED = "broker.allowance_confirmed"
    ALLOWANCE_STRUCK = "broker.allowance_struck"
    LANE_SET = "lane.set"
    LANE_PAUSED = "lane.paused"
    LANE_RESUMED = "lane.resumed"
    REPORT_REQUESTED = "report.requested"
    SKIP_ADDED = "skip.added"
    SKIP_RENEWED = "skip.renewed"
    SKIP_REMOVED = "skip.removed"
    POSITION_MOVED = "position.moved"
    ENDPOINT_CREATED = "endpoint.created"
    ENDPOINT_ALTERED = "endpoint.altered"
    ENDPOINT_REMOVED = "endpoint.removed"
    OUTBOX_ADDED = "outbox.added"
    OUTBOX_ALTERED = "outbox.altered"
    OUTBOX_REMOVED = "outbox.removed"
    OUTBOX_ROW_RELEASED = "outbox.row_released"
    OUTBOX_ROW_DROPPED = "outbox.row_dropped"
    DELIVERIES_RETRIED = "deliveries.retried"
    DELIVERIES_GIVEN_UP = "deliveries.given_up"
    DELIVERIES_RESTORED = "deliveries.restored"


class HeadMissing(Refused):
    """audit_head has no row: nothing can be decided until it is there again."""


def clean_reason(reason: str) -> str:
    """Return an audited reason as it is stored; raise Invalid for a too long one."""
    reason = storable(reason.strip())
    if len(reason) > REASON_LIMIT:
        raise Invalid("reason", f"give at most {REASON_LIMIT:,} characters")
    return reason


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
    """Append a decision to the audit chain; return its number.

    Call it last in the transaction that carries out the decision: it locks the head of
    the chain until that transaction ends. Raises Invalid for a reason that is too long.
    """
    reason = clean_reason(reason)
    with connection.cursor() as cursor:
        cursor.execute(_ADVANCE)
        head = cursor.fetchone()
        if head is None:
            raise HeadMissing
        seq, previous_hash = head
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
        digest = hashlib.sha256(bytes(previous_hash) + text.encode("ascii")).digest()
        cursor.execute(_APPEND, {"seq": seq, "record": text, "hash": digest})
    return int(seq)


_ADVANCE = "UPDATE audit_head SET seq = seq + 1 RETURNING seq, hash"

_APPEND = """
WITH appended AS (
    INSERT INTO audit_entry (seq, record, hash) VALUES (%(seq)s, %(record)s, %(hash)s)
)
UPDATE audit_head SET hash = %(hash)s
"""


def _canonical(value: Mapping[str, Any]) -> str:
    """Serialize an audited decision as sorted ASCII JSON: equal ones get equal text."""
    clean = json.loads(json.dumps(value), object_pairs_hook=_storable_members)
    return json.dumps(clean, sort_keys=True, separators=(",", ":"))


def _storable_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Replace in an audit entry what Postgres refuses; a hook of `json.loads`."""
    # jsonb refuses NUL and lone surrogates; the generated columns read this as jsonb.
    return {
        storable(name): storable(item) if isinstance(item, str) else item
        for name, item in pairs
    }
