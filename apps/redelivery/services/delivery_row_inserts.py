"""Insert the rows of a delivery."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from psycopg import Cursor

from apps.brokers.adapter_contract import Header
from apps.redelivery.call_and_delivery_dataclasses import NewDelivery
from apps.redelivery.endpoint_and_delivery_choices import DeliveryState
from apps.redelivery.models import Delivery, Endpoint

# One statement, so one round trip and one commit for each request.
_INSERT = """
WITH accepted AS (
    INSERT INTO redelivery_delivery (id, endpoint_id, state, method, path, headers,
        size, caller, idempotency_key, is_repeatable, order_key, dedupe, retry_count,
        attempts, accepted_at, expires_at, due_at, last_wait, last_error, cause)
    SELECT %(id)s, %(endpoint)s, 'waiting', %(method)s, %(path)s, %(headers)s,
        %(size)s, %(caller)s, %(idempotency_key)s, %(is_repeatable)s, %(order_key)s,
        %(dedupe)s, 0, 0, %(now)s, %(expires_at)s, %(due_at)s, 0, '', ''
    WHERE EXISTS (SELECT FROM redelivery_endpoint WHERE id = %(endpoint)s)
    ON CONFLICT (endpoint_id, dedupe) WHERE dedupe IS NOT NULL DO NOTHING
    RETURNING id
)
INSERT INTO redelivery_delivery_body (delivery_id, content)
SELECT id, %(body)s FROM accepted
RETURNING delivery_id
"""


def flat(headers: Sequence[Header]) -> list[bytes]:
    """Flatten a request's headers as they are stored: name, value, name, value."""
    return [part for header in headers for part in header]


def insert(endpoint: Endpoint, new: NewDelivery, *, now: datetime) -> Delivery | None:
    """Insert a delivery and its body.

    Returns None where its `dedupe` is there already, or its endpoint no longer is: see
    `remove_endpoint`.
    """
    values = _values_of(endpoint, new, now=now)
    with connection.cursor() as cursor:
        cursor.execute(_INSERT, values)
        if cursor.rowcount == 0:
            return None
    return Delivery(
        id=new.id,
        endpoint=endpoint,
        state=DeliveryState.WAITING.value,
        method=new.method,
        path=new.path,
        headers=values["headers"],
        size=values["size"],
        caller=new.caller,
        idempotency_key=new.idempotency_key,
        is_repeatable=new.is_repeatable,
        order_key=new.order_key,
        dedupe=new.dedupe,
        accepted_at=now,
        expires_at=values["expires_at"],
        due_at=values["due_at"],
    )


def insert_all(
    endpoint: Endpoint, requests: Sequence[NewDelivery], *, now: datetime
) -> set[uuid.UUID]:
    """Insert deliveries as `insert` does, in one round trip; return the new ids."""
    connection.ensure_connection()
    ids = set[uuid.UUID]()
    with connection.wrap_database_errors, Cursor(connection.connection) as cursor:
        cursor.executemany(
            _INSERT,
            [_values_of(endpoint, new, now=now) for new in requests],
            returning=True,
        )
        for _ in cursor.results():
            ids.update(pk for (pk,) in cursor.fetchall())
    return ids


def _values_of(
    endpoint: Endpoint, new: NewDelivery, *, now: datetime
) -> dict[str, Any]:
    return {
        "id": new.id,
        "endpoint": endpoint.pk,
        "method": new.method,
        "path": new.path,
        "headers": flat(new.headers),
        "size": len(new.body),
        "caller": new.caller,
        "idempotency_key": new.idempotency_key,
        "is_repeatable": new.is_repeatable,
        "order_key": new.order_key,
        "dedupe": new.dedupe,
        "now": now,
        "expires_at": endpoint.expiry and now + timedelta(seconds=endpoint.expiry),
        "due_at": now + timedelta(seconds=new.is_delayed_by),
        "body": new.body,
    }
