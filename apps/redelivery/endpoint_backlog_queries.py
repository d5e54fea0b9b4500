"""Queries of the metrics about endpoints: what waits, and how calls ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection
from django.db.models import Sum

from apps.redelivery.models import CallCount
from apps.redelivery.services import call_counts

# From the entries of one index alone.
_WAITING = """
SELECT endpoint_id, count(*), min(due_at) FROM redelivery_delivery
WHERE endpoint_id = ANY (%s) AND state = 'waiting' GROUP BY endpoint_id
"""
_OLDEST = """
SELECT endpoint_id, min(accepted_at) FROM redelivery_delivery
WHERE endpoint_id = ANY (%s) AND state = 'waiting' GROUP BY endpoint_id
"""
ENDS = (
    call_counts.SUCCEEDED_AT_FIRST,
    call_counts.SUCCEEDED_LATER,
    call_counts.FAILED,
    call_counts.GIVEN_UP,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Backlog:
    waiting: int
    next_due: datetime


def waiting(endpoint_ids: Sequence[int]) -> dict[int, Backlog]:
    """Count the waiting deliveries of each endpoint; one without any is left out."""
    with connection.cursor() as cursor:
        cursor.execute(_WAITING, [list(endpoint_ids)])
        return {
            endpoint: Backlog(waiting=number, next_due=next_due)
            for endpoint, number, next_due in cursor.fetchall()
        }


def oldest_waiting(endpoint_ids: Sequence[int]) -> dict[int, datetime]:
    """Return when the oldest waiting delivery of each endpoint was accepted."""
    with connection.cursor() as cursor:
        cursor.execute(_OLDEST, [list(endpoint_ids)])
        return dict(cursor.fetchall())


def ends_since(
    endpoint_ids: Sequence[int], *, since: datetime
) -> dict[int, dict[str, int]]:
    """Sum how calls ended since a time, for each endpoint by the names of `ENDS`."""
    rows = CallCount.objects.filter(endpoint__in=endpoint_ids, minute__gte=since)
    sums = [Sum(name) for name in ENDS]
    return {
        endpoint: dict(zip(ENDS, numbers, strict=True))
        for endpoint, *numbers in rows.order_by()
        .values("endpoint")
        .annotate(*sums)
        .values_list("endpoint", *(f"{name}__sum" for name in ENDS))
    }
