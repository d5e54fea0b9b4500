"""Delete deliveries that ended long ago, and the counts of minutes long past."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from apps.redelivery.delivery_ids import first_id_at
from apps.redelivery.models import CallCount
from apps.reports import delivery_retention_days

COUNT_DAYS = timedelta(days=400)
SHORTEST_RETENTION = timedelta(days=delivery_retention_days.LEAST_DAYS)
AT_ONCE = 1_000

# Ids are in the order of acceptance, so the oldest are found without another index.
_DELETE = f"""
WITH old AS MATERIALIZED (
    SELECT delivery.id FROM redelivery_delivery delivery
    JOIN redelivery_endpoint endpoint ON endpoint.id = delivery.endpoint_id
    JOIN brokers_topic topic ON topic.id = endpoint.topic_id
    WHERE delivery.id > %(after)s AND delivery.id < %(end)s
      AND delivery.finished_at < %(now)s::timestamptz
          - make_interval(days => {delivery_retention_days.DAYS})
      AND NOT EXISTS (SELECT FROM poison_poison WHERE id = delivery.poison)
    ORDER BY delivery.id LIMIT %(most)s
    FOR UPDATE OF delivery SKIP LOCKED
), bodies AS (
    DELETE FROM redelivery_delivery_body body USING old WHERE body.delivery_id = old.id
), attempts AS (
    DELETE FROM redelivery_attempt attempt USING old
    WHERE attempt.delivery_id = old.id
)
DELETE FROM redelivery_delivery delivery USING old WHERE delivery.id = old.id
RETURNING delivery.id
"""  # noqa: S608 - made of our own words


def prune(*, now: datetime, at_once: int = AT_ONCE) -> int:
    """Delete ended deliveries older than their retention; return how many.

    Each batch is a transaction of its own. A given-up delivery stays as long as its
    message: its attempts, with their answers, are nowhere else.
    """
    values: dict[str, Any] = {
        "now": now,
        # What stays is not read again for each batch.
        "after": uuid.UUID(int=0),
        "end": first_id_at(now - SHORTEST_RETENTION),
        "most": at_once,
    }
    number, deleted = 0, at_once
    while deleted == at_once:
        with connection.cursor() as cursor:
            cursor.execute(_DELETE, values)
            ids = [id_ for (id_,) in cursor.fetchall()]
        deleted = len(ids)
        number += deleted
        values["after"] = max(ids, default=values["after"])
    CallCount.objects.filter(minute__lt=now - COUNT_DAYS).delete()
    return number
