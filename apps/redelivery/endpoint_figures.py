"""Figures of endpoints for lists: what waits, and how calls ended by the hour.

Pages and API ask for them within a time limit, and go on without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import connection

from apps.redelivery.models import Endpoint

MOST_COUNTED = 10_000
HOURS = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryBacklog:
    """The unfinished deliveries of an endpoint, each number up to MOST_COUNTED + 1.

    `oldest` is when the first of those came that are counted, `next_due` when the next
    is tried: not before an open breaker lets its probe through.
    """

    waiting: int = 0
    trying: int = 0
    forwarding: int = 0
    oldest: datetime | None = None
    next_due: datetime | None = None

    @property
    def number(self) -> int:
        return self.waiting + self.trying + self.forwarding


class HourOfCalls(NamedTuple):
    """How the calls of an endpoint ended within an hour; `failed` counts attempts."""

    at: datetime
    succeeded_at_first: int = 0
    succeeded_later: int = 0
    failed: int = 0
    given_up: int = 0

    @property
    def succeeded(self) -> int:
        return self.succeeded_at_first + self.succeeded_later


@dataclass(frozen=True, kw_only=True, slots=True)
class CallHours:
    """The calls of an endpoint in the last hours, the oldest hour first."""

    hours: Sequence[HourOfCalls] = field(default_factory=list)

    @property
    def succeeded_at_first(self) -> int:
        return sum(hour.succeeded_at_first for hour in self.hours)

    @property
    def succeeded_later(self) -> int:
        return sum(hour.succeeded_later for hour in self.hours)

    @property
    def succeeded(self) -> int:
        return self.succeeded_at_first + self.succeeded_later

    @property
    def failed(self) -> int:
        return sum(hour.failed for hour in self.hours)

    @property
    def failed_by_hour(self) -> list[int]:
        return [hour.failed for hour in self.hours]

    @property
    def given_up(self) -> int:
        return sum(hour.given_up for hour in self.hours)

    @property
    def calls(self) -> int:
        return self.succeeded + self.failed

    @property
    def success_share(self) -> float | None:
        """Return the part of the calls that succeeded; None without a call."""
        return self.succeeded / self.calls if self.calls else None


# Each in the order of an index of its state alone: finished deliveries cost nothing.
_BACKLOGS = """
SELECT endpoint.id, waiting.number, trying.number, forwarding.number,
    least(waiting.oldest, trying.oldest, forwarding.oldest),
    CASE WHEN waiting.number > 0
         THEN greatest(waiting.next_due, CASE WHEN settings.breaker_failures > 0
                                              THEN activity.open_until END) END
FROM unnest(%(endpoints)s::bigint[]) AS endpoint(id)
LEFT JOIN redelivery_endpoint settings ON settings.id = endpoint.id
LEFT JOIN redelivery_endpoint_activity activity ON activity.endpoint_id = endpoint.id
CROSS JOIN LATERAL (
    SELECT count(*) AS number, min(accepted_at) AS oldest, min(due_at) AS next_due
    FROM (SELECT accepted_at, due_at FROM redelivery_delivery
          WHERE endpoint_id = endpoint.id AND state = 'waiting'
          ORDER BY due_at LIMIT %(most)s) bounded) waiting
CROSS JOIN LATERAL (
    SELECT count(*) AS number, min(accepted_at) AS oldest
    FROM (SELECT accepted_at FROM redelivery_delivery
          WHERE endpoint_id = endpoint.id AND state = 'trying'
          ORDER BY claimed_until LIMIT %(most)s) bounded) trying
CROSS JOIN LATERAL (
    SELECT count(*) AS number, min(accepted_at) AS oldest
    FROM (SELECT accepted_at FROM redelivery_delivery
          WHERE endpoint_id = endpoint.id AND state = 'forwarding'
          ORDER BY id LIMIT %(most)s) bounded) forwarding
"""

_HOURS = """
SELECT endpoint_id, date_trunc('hour', minute, 'UTC') AS hour,
    sum(succeeded_at_first)::bigint, sum(succeeded_later)::bigint,
    sum(failed)::bigint, sum(given_up)::bigint
FROM redelivery_call_count
WHERE endpoint_id = ANY(%(endpoints)s::bigint[]) AND minute >= %(since)s
GROUP BY 1, 2
"""


def backlogs(endpoints: Sequence[int]) -> dict[int, DeliveryBacklog]:
    """Count the unfinished deliveries of each endpoint."""
    with connection.cursor() as cursor:
        cursor.execute(
            _BACKLOGS, {"endpoints": list(endpoints), "most": MOST_COUNTED + 1}
        )
        return {
            endpoint: DeliveryBacklog(
                waiting=waiting,
                trying=trying,
                forwarding=forwarding,
                oldest=oldest,
                next_due=next_due,
            )
            for endpoint, waiting, trying, forwarding, oldest, next_due in cursor
        }


def next_probe(
    endpoint: Endpoint, backlog: DeliveryBacklog | None, *, now: datetime
) -> datetime | None:
    """Return when an endpoint's open breaker lets a probe through; None: at no time.

    That is when a delivery is due. Where none waits the time comes with a request, so
    it is None once the breaker would let one through. `backlog` is None where it is
    not counted.
    """
    open_until = endpoint.activity.open_until
    if not endpoint.breaker_failures or open_until is None:
        return None
    if backlog is None:
        return open_until
    return backlog.next_due or (open_until if open_until > now else None)


def call_hours(endpoints: Sequence[int], *, now: datetime) -> dict[int, CallHours]:
    """Sum the calls of each endpoint by the hour, over the last day."""
    newest = now.replace(minute=0, second=0, microsecond=0)
    hours = [newest - timedelta(hours=ago) for ago in reversed(range(HOURS))]
    with connection.cursor() as cursor:
        cursor.execute(_HOURS, {"endpoints": list(endpoints), "since": hours[0]})
        sums = {
            (endpoint, at): HourOfCalls(at, *numbers)
            for endpoint, at, *numbers in cursor
        }
    return {
        endpoint: CallHours(
            hours=[sums.get((endpoint, at), HourOfCalls(at)) for at in hours]
        )
        for endpoint in endpoints
    }
