"""Record successes by two statements, however many there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connection

from apps.brokers.adapter_contract import Header
from apps.redelivery.calls import EndedAttempt

_END_ATTEMPTS = """
UPDATE redelivery_attempt AS attempt
SET outcome = 'succeeded', ended_at = ended.moment, status = ended.status,
    answer_headers = ended.headers::bytea[], answer = ended.answer,
    is_answer_cut = ended.is_cut
FROM unnest(%(deliveries)s::uuid[], %(numbers)s::int[], %(moments)s::timestamptz[],
    %(statuses)s::int[], %(headers)s::text[], %(answers)s::bytea[], %(are_cut)s::bool[]
) AS ended (delivery, number, moment, status, headers, answer, is_cut)
WHERE attempt.delivery_id = ended.delivery AND attempt.number = ended.number
"""
_END_DELIVERIES = """
UPDATE redelivery_delivery AS delivery
SET state = 'delivered', claim = NULL, fence = NULL, claimed_until = NULL,
    last_status = ended.status, last_error = '', finished_at = ended.moment
FROM unnest(%(deliveries)s::uuid[], %(moments)s::timestamptz[], %(statuses)s::int[]
) AS ended (delivery, moment, status)
WHERE delivery.id = ended.delivery
"""


def record(attempts: Sequence[EndedAttempt]) -> None:
    """End these attempts and their deliveries, which the transaction has locked."""
    if not attempts:
        return
    results = [attempt.result for attempt in attempts]
    values: dict[str, Any] = {
        "deliveries": [attempt.delivery for attempt in attempts],
        "numbers": [attempt.attempt for attempt in attempts],
        "moments": [attempt.ended_at for attempt in attempts],
        "statuses": [result.status for result in results],
        "headers": [_array(result.headers) for result in results],
        "answers": [result.body for result in results],
        "are_cut": [result.is_cut for result in results],
    }
    with connection.cursor() as cursor:
        cursor.execute(_END_ATTEMPTS, values)
        cursor.execute(_END_DELIVERIES, values)


def _array(headers: Sequence[Header]) -> str:
    """Write headers as an array of Postgres: arrays of several lengths are no array."""
    parts = (part.hex() for header in headers for part in header)
    return "{" + ",".join(f'"\\\\x{part}"' for part in parts) + "}"
