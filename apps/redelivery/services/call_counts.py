"""Count the calls of each endpoint by the minute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime

from django.db import connection

from apps.redelivery.endpoint_and_delivery_choices import DeliveryState
from apps.redelivery.models import Delivery

SUCCEEDED_AT_FIRST = "succeeded_at_first"
SUCCEEDED_LATER = "succeeded_later"
FAILED = "failed"
GIVEN_UP = "given_up"

_ADD = """
INSERT INTO redelivery_call_count AS count (endpoint_id, minute, succeeded_at_first,
    succeeded_later, failed, given_up)
VALUES (%(endpoint)s, %(minute)s, %(succeeded_at_first)s, %(succeeded_later)s,
    %(failed)s, %(given_up)s)
ON CONFLICT (endpoint_id, minute) DO UPDATE SET
    succeeded_at_first = count.succeeded_at_first + excluded.succeeded_at_first,
    succeeded_later = count.succeeded_later + excluded.succeeded_later,
    failed = count.failed + excluded.failed,
    given_up = count.given_up + excluded.given_up
"""


def add(*, endpoint_id: int, counts: Mapping[str, int], now: datetime) -> None:
    """Add to Postgres's counts of an endpoint's calls in this minute.

    A count that is missing adds nothing.
    """
    values = dict.fromkeys((SUCCEEDED_AT_FIRST, SUCCEEDED_LATER, FAILED, GIVEN_UP), 0)
    values |= counts
    if not any(values.values()):
        return
    minute = now.replace(second=0, microsecond=0)
    with connection.cursor() as cursor:
        cursor.execute(_ADD, {**values, "endpoint": endpoint_id, "minute": minute})


def counts_of(delivery: Delivery, *, succeeded: bool) -> Counter[str]:
    """Return what a delivery's attempt that ended just now adds to the call counts."""
    if succeeded:
        return Counter([success_at(delivery.attempts)])
    counts = Counter([FAILED])
    if delivery.state != DeliveryState.WAITING:
        counts[GIVEN_UP] += 1
    return counts


def success_at(attempt: int) -> str:
    """Return the name of the count for a success at the attempt of this number."""
    return SUCCEEDED_AT_FIRST if attempt == 1 else SUCCEEDED_LATER
