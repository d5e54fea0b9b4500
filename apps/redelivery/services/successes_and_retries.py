"""Record successes, and failures to be retried: however many, by one statement.

Their results change nothing but their delivery.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from apps.core.queryset_sql import binary_rows
from apps.core.text_cleaning import storable
from apps.redelivery.call_and_delivery_dataclasses import EndedAttempt
from apps.redelivery.endpoint_and_delivery_choices import DeliveryState
from apps.redelivery.request_message_headers import REDRIVE
from apps.redelivery.retry_plan import NextTry

DETAIL_LIMIT = 2_000

# One document, since an array for each column costs Python more than all the rest.
_RECORD = """
WITH ended AS MATERIALIZED (
    SELECT ended.* FROM json_to_recordset(%(ended)s::json) AS ended (
        place int, delivery uuid, claim uuid, number int, outcome text,
        begun_at timestamptz, ended_at timestamptz, status int, detail text,
        headers bytea[], answer bytea, is_cut bool, state text, failures int,
        due_at timestamptz, wait float)
    JOIN redelivery_delivery delivery
      ON delivery.id = ended.delivery AND delivery.claim = ended.claim
    WHERE ended.due_at IS NOT NULL
       OR delivery.dedupe IS NULL AND NOT %(redrive)s = ANY (delivery.headers)
    ORDER BY delivery.id FOR UPDATE OF delivery
), attempt AS (
    UPDATE redelivery_attempt AS attempt
    SET outcome = ended.outcome, ended_at = ended.ended_at, status = ended.status,
        begun_at = coalesce(ended.begun_at, attempt.begun_at), detail = ended.detail,
        answer_headers = ended.headers, answer = ended.answer,
        is_answer_cut = ended.is_cut
    FROM ended
    WHERE attempt.delivery_id = ended.delivery AND attempt.number = ended.number
)
UPDATE redelivery_delivery AS delivery
SET state = ended.state, claim = NULL, fence = NULL, claimed_until = NULL,
    last_status = ended.status, last_error = ended.detail,
    retry_count = delivery.retry_count + ended.failures,
    due_at = coalesce(ended.due_at, delivery.due_at),
    last_wait = coalesce(ended.wait, delivery.last_wait),
    finished_at = CASE WHEN ended.due_at IS NULL THEN ended.ended_at END
FROM ended WHERE delivery.id = ended.delivery
RETURNING ended.place
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SuccessOrRetry:
    """An attempt, and the next try that follows its failure; None for a success."""

    attempt: EndedAttempt
    following: NextTry | None


def record(results: Sequence[SuccessOrRetry]) -> list[bool]:
    """Record attempts that succeeded, or are tried again; False for each it does not.

    Those have lost their claim, or change more than their delivery with a success.
    Locks the deliveries in the order of their ids.
    """
    if not results:
        return []
    document = json.dumps([_row(*each) for each in enumerate(results)])
    rows = binary_rows(_RECORD, {"ended": document, "redrive": REDRIVE})
    places = {place for (place,) in rows}
    return [place in places for place in range(len(results))]


def _row(place: int, ended: SuccessOrRetry) -> Mapping[str, Any]:
    attempt, result = ended.attempt, ended.attempt.result
    row = {
        "place": place,
        "delivery": str(attempt.delivery),
        "claim": str(attempt.claim),
        "number": attempt.attempt,
        "outcome": result.outcome.value,
        "begun_at": attempt.begun_at and attempt.begun_at.isoformat(),
        "ended_at": attempt.ended_at.isoformat(),
        "status": result.status,
        "detail": storable(result.detail, limit=DETAIL_LIMIT),
        "headers": [_bytea(part) for header in result.headers for part in header],
        "answer": _bytea(result.body),
        "is_cut": result.is_cut,
        "state": DeliveryState.DELIVERED.value,
        "failures": 0,
    }
    if ended.following is not None:
        row |= {
            "state": DeliveryState.WAITING.value,
            "failures": 1,
            "due_at": ended.following.due_at.isoformat(),
            "wait": _seconds(ended.following.due_at, since=attempt.ended_at),
        }
    return row


def _bytea(value: bytes) -> str:
    return f"\\x{value.hex()}"


def _seconds(moment: datetime, *, since: datetime) -> float:
    return (moment - since).total_seconds()
