"""What an endpoint's sender has to do now, and when next.

One statement for all endpoints of a sender: it reads a few entries of partial indexes,
however many deliveries sleep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from apps.redelivery.models import EndpointActivity

_PENDING = """
SELECT endpoint.id,
    (SELECT min(due_at) FROM redelivery_delivery
     WHERE endpoint_id = endpoint.id AND state = 'waiting'),
    (SELECT min(claimed_until) FROM redelivery_delivery
     WHERE endpoint_id = endpoint.id AND state = 'trying'),
    EXISTS (SELECT FROM redelivery_delivery
            WHERE endpoint_id = endpoint.id AND state = 'forwarding')
FROM unnest(%s::bigint[]) AS endpoint (id)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingWork:
    """When the next delivery is due, and when the next claim ends; None: never."""

    next_due: datetime | None = None
    next_claim_end: datetime | None = None
    has_forwards: bool = False


def pending_work(*, endpoint_ids: Sequence[int]) -> dict[int, PendingWork]:
    """Return each endpoint's next due time and end of a claim, and if it forwards."""
    with connection.cursor() as cursor:
        cursor.execute(_PENDING, [list(endpoint_ids)])
        return {
            endpoint: PendingWork(
                next_due=due, next_claim_end=claim_end, has_forwards=has_forwards
            )
            for endpoint, due, claim_end, has_forwards in cursor.fetchall()
        }


def store_heartbeat(*, endpoint_ids: Sequence[int], now: datetime) -> None:
    """Store the heartbeat of these endpoints' sender."""
    EndpointActivity.objects.filter(endpoint__in=endpoint_ids).update(heard_at=now)
