"""Claim due deliveries for the one sender of an endpoint.

A sender holds the fair lock of its endpoint; the lock's fence (Kleppmann, "How to do
distributed locking", 2016) is compared in the transaction of each claim, so that one
that lost the lock, but does not know it yet, claims nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction

from apps.core.errors import Refused
from apps.core.queryset_sql import binary_rows
from apps.redelivery.call_and_delivery_dataclasses import ClaimedDelivery
from apps.redelivery.models import Endpoint, EndpointActivity
from apps.redelivery.request_message_headers import REDRIVE

MOST_BYTES = 64 * 2**20


class EndpointTaken(Refused):
    """Another sender owns this endpoint now."""


_CLAIM = """
WITH due AS MATERIALIZED (
    SELECT id, size, due_at, is_repeatable FROM redelivery_delivery delivery
    WHERE endpoint_id = %(endpoint)s AND state = 'waiting' AND due_at <= %(now)s
      AND (expires_at IS NULL OR expires_at > %(now)s)
      AND (order_key IS NULL OR NOT EXISTS (
          SELECT FROM redelivery_delivery earlier
          WHERE earlier.endpoint_id = %(endpoint)s
            AND earlier.order_key = delivery.order_key AND earlier.id < delivery.id
            AND earlier.state IN ('waiting', 'trying', 'forwarding')))
    ORDER BY due_at LIMIT %(most)s::int + %(ahead)s::int
    FOR UPDATE SKIP LOCKED
), fitting AS (
    SELECT id FROM (
        SELECT id, is_repeatable, row_number() OVER earlier AS place,
            sum(size) OVER earlier - size AS bytes_before
        FROM due WINDOW earlier AS (ORDER BY due_at, id)
    ) sized
    WHERE bytes_before < %(bytes)s AND (place <= %(most)s::int OR is_repeatable)
), claimed AS (
    UPDATE redelivery_delivery delivery
    SET state = 'trying', claim = %(claim)s, fence = %(fence)s,
        claimed_until = %(claimed_until)s, attempts = attempts + 1
    FROM fitting WHERE delivery.id = fitting.id
    RETURNING delivery.id, delivery.attempts, delivery.method, delivery.path,
        delivery.headers, delivery.idempotency_key,
        delivery.dedupe IS NOT NULL OR %(redrive)s = ANY (delivery.headers)
            AS is_requeued
), attempt AS (
    INSERT INTO redelivery_attempt (delivery_id, number, outcome, begun_at, detail,
        answer_headers, answer, is_answer_cut)
    SELECT id, attempts, 'trying', %(now)s, '', '{}', '', false FROM claimed
)
SELECT claimed.*, body.content FROM claimed
JOIN redelivery_delivery_body body ON body.delivery_id = claimed.id
ORDER BY claimed.id
"""


_GIVE_BACK = """
WITH owned AS MATERIALIZED (
    SELECT delivery.id, delivery.attempts FROM redelivery_delivery delivery
    JOIN unnest(%(ids)s::uuid[], %(claims)s::uuid[]) AS ours (id, claim)
      ON delivery.id = ours.id AND delivery.claim = ours.claim
    ORDER BY delivery.id FOR UPDATE OF delivery
), attempt AS (
    DELETE FROM redelivery_attempt attempt USING owned
    WHERE attempt.delivery_id = owned.id AND attempt.number = owned.attempts
)
UPDATE redelivery_delivery delivery
SET state = 'waiting', attempts = delivery.attempts - 1,
    claim = NULL, fence = NULL, claimed_until = NULL
FROM owned WHERE delivery.id = owned.id
"""


@transaction.atomic
def claim(
    *, endpoint: Endpoint, fence: int, most: int, ahead: int = 0, now: datetime
) -> list[ClaimedDelivery]:
    """Claim up to `most` due deliveries, of up to 64 MB together; the oldest first.

    `ahead` more are claimed for calls that cannot begin yet, but only repeatable ones:
    what a sender leaves that is killed counts as called. Behind an open breaker one is
    claimed, its probe, once an interval. Raises EndpointTaken where a sender with a
    newer fence was here.
    """
    probes = _store_fence_and_count_probes(endpoint, fence, now=now)
    if probes is not None:
        most, ahead = min(most, probes), 0
    most = min(most, endpoint.concurrency)
    if most + ahead <= 0:
        return []
    claim_id = uuid.uuid4()
    claimed_until = now + timedelta(seconds=endpoint.claim_timeout)
    rows = binary_rows(
        _CLAIM,
        {
            "endpoint": endpoint.pk,
            "fence": fence,
            "claim": claim_id,
            "claimed_until": claimed_until,
            "most": most,
            "ahead": ahead,
            "bytes": MOST_BYTES,
            "redrive": REDRIVE,
            "now": now,
        },
    )
    if rows and probes:
        _begin_probe(endpoint, now=now)
    return [
        ClaimedDelivery(
            id=id_,
            claim=claim_id,
            attempt=number,
            method=method,
            path=path,
            headers=tuple(zip(headers[::2], headers[1::2], strict=True)),
            idempotency_key=key,
            body=body,
            begun_at=now,
            claimed_until=claimed_until,
            is_requeued=is_requeued,
        )
        for id_, number, method, path, headers, key, is_requeued, body in rows
    ]


def next_due(*, endpoint_ids: list[int]) -> dict[int, datetime]:
    """Return when the next waiting delivery of each endpoint is due, if it has one."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT endpoint.id, (SELECT min(due_at) FROM redelivery_delivery"
            " WHERE endpoint_id = endpoint.id AND state = 'waiting')"
            " FROM unnest(%s::bigint[]) AS endpoint(id)",
            [endpoint_ids],
        )
        return {endpoint: due for endpoint, due in cursor.fetchall() if due is not None}


def give_back(*, deliveries: Sequence[ClaimedDelivery]) -> int:
    """Let deliveries wait as before their claim; return how many were still claimed.

    Only for those that were not called: their attempts are removed.
    """
    values: dict[str, Any] = {
        "ids": [delivery.id for delivery in deliveries],
        "claims": [delivery.claim for delivery in deliveries],
    }
    with connection.cursor() as cursor:
        cursor.execute(_GIVE_BACK, values)
        number: int = cursor.rowcount
    return number


def _store_fence_and_count_probes(
    endpoint: Endpoint, fence: int, *, now: datetime
) -> int | None:
    """Store a newer fence; return how many probes an open breaker lets through now.

    None without an open breaker. Raises EndpointTaken when a newer fence is stored.
    """
    activity = EndpointActivity.objects.select_for_update().get(endpoint=endpoint)
    if activity.fence > fence:
        raise EndpointTaken
    if activity.fence < fence:
        activity.fence = fence
        activity.save(update_fields=["fence"])
    if activity.open_until is None or not endpoint.breaker_failures:
        return None
    return 1 if activity.open_until <= now else 0


def _begin_probe(endpoint: Endpoint, *, now: datetime) -> None:
    """Let the next probe of an open breaker wait for an interval."""
    EndpointActivity.objects.filter(endpoint=endpoint, open_until__lte=now).update(
        open_until=now + timedelta(seconds=endpoint.breaker_interval)
    )
