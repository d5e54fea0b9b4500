"""What consumers tell of the skips that they applied, counted once."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from apps.poison.models import Skip
from apps.team.rights import Principal

_COUNT = """
WITH told AS (
    SELECT * FROM unnest(%(skips)s::int8[], %(groups)s::text[], %(clients)s::text[],
        %(counts)s::int8[], %(lasts)s::timestamptz[], %(reports)s::uuid[])
        AS told(skip, consumer_group, client_name, number, last_at, report)
), fresh AS (
    INSERT INTO poison_skip_count
        (report, skip_id, consumer_group, client_name, count, counted_at)
    SELECT DISTINCT ON (report)
           report, skip, consumer_group, client_name, number, %(now)s
    FROM told WHERE report IS NOT NULL ORDER BY report
    ON CONFLICT (report) DO NOTHING RETURNING report, skip_id, count
), added AS (
    SELECT skip, sum(number) AS number, max(last_at) AS last_at FROM (
        SELECT skip, number, last_at FROM told WHERE report IS NULL
        UNION ALL
        SELECT fresh.skip_id, fresh.count, (
            SELECT max(told.last_at) FROM told WHERE told.report = fresh.report)
        FROM fresh) every
    GROUP BY skip HAVING sum(number) > 0
)
UPDATE poison_skip SET applied = applied + added.number,
       last_applied_at = greatest(last_applied_at, least(added.last_at, %(now)s))
FROM added WHERE poison_skip.id = added.skip
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """One consumer's word that it passed over; the same `report` counts once.

    Or that it `handled` the message, so that nobody needs to pass over it.
    """

    skip: int
    consumer_group: str
    client_name: str
    count: int
    last_at: datetime
    report: uuid.UUID | None
    handled: bool = False


@transaction.atomic
def applied(
    *, told: Sequence[Applied], principal: Principal, now: datetime
) -> list[bool]:
    """Add up what consumers passed over; False for a skip that nobody here sees."""
    wanted = {each.skip for each in told}
    allowed = Skip.objects.on_topics(principal.topics).filter(pk__in=wanted)
    # Locked on their own: a join would lock the topics too.
    known = set(allowed.values_list("pk", flat=True))
    list(
        Skip.objects.filter(pk__in=known)
        .order_by("pk")
        .select_for_update(no_key=True)
        .values_list("pk")
    )
    counted = [each for each in told if each.skip in known]
    if counted:
        with connection.cursor() as cursor:
            cursor.execute(_COUNT, {**_columns(counted), "now": now})
    return [each.skip in known for each in told]


def _columns(told: Sequence[Applied]) -> dict[str, list[Any]]:
    return {
        "skips": [each.skip for each in told],
        "groups": [each.consumer_group for each in told],
        "clients": [each.client_name for each in told],
        "counts": [each.count for each in told],
        "lasts": [each.last_at for each in told],
        "reports": [each.report for each in told],
    }
