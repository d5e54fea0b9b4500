"""Sum the calls and deliveries in a snapshot, to compare them with staged rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

from django.db import connection

from apps.brokers.models import Topic
from apps.core.shared_postgres_snapshot import Snapshot
from apps.reports.models import Run

# The rows of each kind of facts, by day, and the sums by (day, topic and measure).
FactRows = Mapping[str, Counter[date]]
EndpointSums = dict[tuple[date, str], int]

_CALLS = """
SELECT (minute AT TIME ZONE 'UTC')::date, topic.name, count(*),
       sum(succeeded_at_first + succeeded_later + failed), sum(succeeded_at_first)
FROM redelivery_call_count
JOIN redelivery_endpoint endpoint ON endpoint.id = endpoint_id
JOIN brokers_topic topic ON topic.id = topic_id
WHERE minute >= %(from)s AND minute < %(until)s
GROUP BY 1, 2
"""

# `ended` counts all but the successes at first, which the calls count.
_DELIVERIES = """
SELECT (finished_at AT TIME ZONE 'UTC')::date, topic.name, count(*),
       count(*) FILTER (WHERE NOT (state = 'delivered' AND attempts = 1)),
       count(*) FILTER (WHERE state = 'given_up'),
       count(*) FILTER (WHERE state = 'dropped'),
       count(*) FILTER (WHERE state = 'forwarded'),
       count(*) FILTER (WHERE cause = 'unknown' AND state <> 'delivered'),
       count(*) FILTER (WHERE state = 'delivered')
FROM redelivery_delivery
JOIN redelivery_endpoint endpoint ON endpoint.id = endpoint_id
JOIN brokers_topic topic ON topic.id = topic_id
WHERE finished_at >= %(from)s AND finished_at < %(until)s
GROUP BY 1, 2
"""

_BACKLOGS = """
WITH ends AS (
    SELECT day::date AS day, (day + interval '1 day') AT TIME ZONE 'UTC' AS midnight
    FROM generate_series(%(first)s::timestamp, %(last)s::timestamp, '1 day') AS day
)
SELECT day, topic.name, 1, count(*)
FROM ends, redelivery_delivery
JOIN redelivery_endpoint endpoint ON endpoint.id = endpoint_id
JOIN brokers_topic topic ON topic.id = topic_id
WHERE accepted_at < midnight AND coalesce(finished_at, 'infinity') >= midnight
GROUP BY 1, 2
"""

_FACTS = {
    "calls": (_CALLS, ("calls", "succeeded_at_first")),
    "deliveries": (
        _DELIVERIES,
        ("ended", "given_up", "dropped", "forwarded", "unknown", "timed"),
    ),
    "backlogs": (_BACKLOGS, ("waiting",)),
}

_MEASURES = (
    *("calls", "succeeded_at_first", "ended", "given_up", "dropped", "forwarded"),
    *("unknown", "timed", "waiting"),
)
_STAGED = """
SELECT day, topic, sum(calls), sum(succeeded_at_first),
       sum(after_1 + after_2 + after_3 + after_4_to_10 + after_more
           + given_up + dropped + forwarded),
       sum(given_up), sum(dropped), sum(forwarded), sum(unknown), sum(timed),
       sum(waiting)
FROM reports_staged_endpoint WHERE run_id = %(run)s AND epoch = %(epoch)s
GROUP BY 1, 2
"""

IMPOSSIBLE = """
SELECT day, endpoint FROM reports_staged_endpoint
WHERE run_id = %(run)s AND epoch = %(epoch)s
  AND (day < %(first)s OR day > %(last)s
       OR least(calls, succeeded_at_first, after_1, after_2, after_3, after_4_to_10,
                after_more, given_up, dropped, forwarded, unknown, waiting) < 0
       OR succeeded_at_first > calls OR unknown > given_up + dropped + forwarded
       OR timed < after_1 + after_2 + after_3 + after_4_to_10 + after_more
       OR (timed > 0) <> coalesce(p50_ms <= p95_ms AND p95_ms <= longest_ms, false)
       OR topic NOT IN (SELECT name FROM brokers_topic))
ORDER BY 1, 2 LIMIT 3
"""


def expected_sums(
    snapshot: Snapshot, window: Mapping[str, Any]
) -> tuple[FactRows, EndpointSums]:
    """Count the facts about endpoints that a report must have read, by kind and day.

    Adds up their measures, too, in its snapshot, to compare them with what it staged.
    The sums leave out topics that were removed since the snapshot.
    """
    names = set(Topic.objects.values_list("name", flat=True))
    rows = {kind: Counter[date]() for kind in _FACTS}
    sums: EndpointSums = {}
    for kind, (statement, measures) in _FACTS.items():
        for day, topic, number, *values in snapshot.query(statement, {**window}):
            rows[kind][day] += number
            if topic in names:
                sums |= _by_day_and_measure(day, topic, measures, values)
    return rows, sums


def staged_sums(run: Run) -> EndpointSums:
    """Add up what a report run staged about endpoints."""
    sums: EndpointSums = {}
    with connection.cursor() as cursor:
        cursor.execute(_STAGED, {"run": run.pk, "epoch": run.epoch})
        for day, topic, *values in cursor.fetchall():
            sums |= _by_day_and_measure(day, topic, _MEASURES, values)
    return sums


def _by_day_and_measure(
    day: date, topic: str, measures: tuple[str, ...], values: list[Any]
) -> EndpointSums:
    """Key a report's sums of a topic's endpoint on a day; leave out those that are 0.

    The key of each sum is the day, and the topic with the measure.
    """
    return dict(_pairs(day, topic, measures, values))


def _pairs(
    day: date, topic: str, measures: tuple[str, ...], values: list[Any]
) -> Iterator[tuple[tuple[date, str], int]]:
    for measure, value in zip(measures, values, strict=True):
        if value:
            yield (day, f"{topic} {measure}"), int(value)
