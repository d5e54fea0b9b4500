"""Store requests, so that they are delivered whatever happens to us."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime

from django.db import transaction

from apps.redelivery.call_and_delivery_dataclasses import FirstTry, NewDelivery
from apps.redelivery.due_notices import notify_due
from apps.redelivery.models import Delivery, Endpoint
from apps.redelivery.services import attempt_results, call_counts, circuit_breaker
from apps.redelivery.services.delivery_row_inserts import insert, insert_all


def accept(*, endpoint: Endpoint, new: NewDelivery, now: datetime) -> Delivery | None:
    """Store a request to an endpoint as a delivery, and return it.

    Returns None where its `dedupe` is there already, or its endpoint no longer is. A
    failed first try is stored with it, as its first attempt, and may already end it:
    so it counts as accepted when that try had ended, not when it is stored.
    The caller notifies the senders: see `notify_due`.
    """
    if new.first_try is None:
        return insert(endpoint, new, now=now)
    with transaction.atomic():
        delivery = insert(endpoint, new, now=min(now, new.first_try.ended_at))
        if delivery is not None:
            _add_first_try(delivery, endpoint, new.first_try)
    return delivery


@transaction.atomic
def accept_all(
    *, endpoint: Endpoint, deliveries: Sequence[NewDelivery], now: datetime
) -> set[uuid.UUID]:
    """Store requests as deliveries without a first try; return the new ones' ids."""
    stored = insert_all(endpoint, deliveries, now=now)
    if stored:
        notify_due(endpoint_id=endpoint.pk)
    return stored


def _add_first_try(delivery: Delivery, endpoint: Endpoint, first: FirstTry) -> None:
    """Record the try that was made before the delivery was stored."""
    attempt_results.add_attempt(delivery, begun_at=first.begun_at)
    succeeded = attempt_results.end_attempt(
        delivery, endpoint, first.result, ended_at=first.ended_at
    )
    circuit_breaker.note(endpoint=endpoint, outcomes=[succeeded], now=first.ended_at)
    call_counts.add(
        endpoint_id=endpoint.pk,
        counts=call_counts.counts_of(delivery, succeeded=succeeded),
        now=first.ended_at,
    )
