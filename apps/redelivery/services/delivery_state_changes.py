"""What is done to deliveries at once: make them due, give them up, begin them again.

A sender may claim any of them at any moment, so they are locked first, in the order of
their ids. What is in another state than an act needs stays as it is.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime

from django.db import connection

from apps.redelivery.due_notices import notify_due
from apps.redelivery.endpoint_and_delivery_choices import DeliveryState
from apps.redelivery.models import Delivery
from apps.redelivery.services import call_counts, delivery_endings
from poisonguard.contract import Cause

_LOCK = """
SELECT id, state, endpoint_id FROM redelivery_delivery
WHERE id = ANY(%(ids)s) ORDER BY id FOR UPDATE
"""

# The plan stays the same; what is overdue keeps its place.
_MAKE_DUE = """
UPDATE redelivery_delivery SET due_at = %(now)s
WHERE id = ANY(%(ids)s) AND state = 'waiting' AND due_at > %(now)s
"""

_BEGIN_AGAIN = """
UPDATE redelivery_delivery delivery
SET state = 'waiting', retry_count = 0, due_at = %(now)s, finished_at = NULL,
    cause = '',
    expires_at = %(now)s::timestamptz + make_interval(secs => endpoint.expiry)
FROM redelivery_endpoint endpoint
WHERE delivery.id = ANY(%(ids)s) AND delivery.state = 'dropped'
  AND endpoint.id = delivery.endpoint_id
"""


class LockedDeliveries:
    """Deliveries that are locked until the transaction ends, by their states."""

    def __init__(self, ids: Collection[uuid.UUID]) -> None:
        with connection.cursor() as cursor:
            cursor.execute(_LOCK, {"ids": list(ids)})
            rows = cursor.fetchall()
        self.states: Mapping[uuid.UUID, str] = {pk: state for pk, state, _ in rows}
        self._endpoints = {pk: endpoint for pk, _, endpoint in rows}
        self._given_up = Counter[int]()

    def make_due(self, *, now: datetime) -> None:
        """Make the waiting ones of these deliveries due now."""
        self._write(_MAKE_DUE, DeliveryState.WAITING, now=now)

    def begin_again(self, *, now: datetime) -> None:
        """Set the dropped ones of these deliveries to waiting, with a whole plan."""
        self._write(_BEGIN_AGAIN, DeliveryState.DROPPED, now=now)

    def give_up(self, *, now: datetime) -> None:
        """End the waiting ones of these deliveries, as their endpoints say."""
        ids = self._in(DeliveryState.WAITING)
        deliveries = Delivery.objects.filter(pk__in=ids).select_related(
            "endpoint", "endpoint__topic", "endpoint__forward_endpoint"
        )
        delivery_endings.end_all(
            list(deliveries.order_by("pk")), cause=Cause.MANUAL, now=now
        )
        self._given_up = self._endpoints_of(ids)
        # For what is forwarded.
        for endpoint_id in sorted(self._given_up):
            notify_due(endpoint_id=endpoint_id)

    def count_given_up(self, *, now: datetime) -> None:
        """Add the given-up deliveries to the endpoints' counts, in their order.

        Call it late: calls that end at these endpoints wait for these rows.
        """
        for endpoint_id, number in sorted(self._given_up.items()):
            call_counts.add(
                endpoint_id=endpoint_id, counts={call_counts.GIVEN_UP: number}, now=now
            )

    def _write(self, statement: str, state: DeliveryState, *, now: datetime) -> None:
        ids = self._in(state)
        if not ids:
            return
        with connection.cursor() as cursor:
            cursor.execute(statement, {"ids": ids, "now": now})
        for endpoint_id in sorted(self._endpoints_of(ids)):
            notify_due(endpoint_id=endpoint_id)

    def _in(self, state: DeliveryState) -> list[uuid.UUID]:
        return [pk for pk, each in self.states.items() if each == state]

    def _endpoints_of(self, ids: Collection[uuid.UUID]) -> Counter[int]:
        return Counter(self._endpoints[pk] for pk in ids)
