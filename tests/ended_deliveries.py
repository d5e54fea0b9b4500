"""Deliveries that ended, or wait, at given times, and counts of calls."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from apps.redelivery.delivery_ids import new_delivery_id
from apps.redelivery.endpoint_and_delivery_choices import FINISHED
from apps.redelivery.models import CallCount, Delivery, Endpoint

# Of poisons that no test reads: deliveries have no foreign key to them.
_POISON = 4711


def delivery(
    of: Endpoint,
    state: str,
    at: datetime,
    *,
    took: timedelta = timedelta(seconds=3),
    **changes: Any,
) -> Delivery:
    """Store a delivery that ended at a time, or that came then and still waits."""
    is_over = state in FINISHED
    values: dict[str, Any] = {
        "id": new_delivery_id(),
        "method": "POST",
        "path": b"/",
        "size": 0,
        "caller": "key:shop",
        "idempotency_key": "order-13",
        "is_repeatable": True,
        "attempts": 2,
        "accepted_at": at - took if is_over else at,
        "due_at": at,
        "finished_at": at if is_over else None,
        "poison": _POISON if state == "given_up" else None,
    }
    return Delivery.objects.create(endpoint=of, state=state, **{**values, **changes})


def calls(of: Endpoint, minute: datetime, **counts: int) -> CallCount:
    return CallCount.objects.create(endpoint=of, minute=minute, **counts)
