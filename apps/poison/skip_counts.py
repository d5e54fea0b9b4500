"""Count the skips that consumers report as applied, each report once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from apps.poison.models import Skip
from apps.team.rights import Principal
from poisonguard.contract import AppliedSkip

_COUNT = """
WITH reports AS (
    SELECT * FROM unnest(%(skips)s::int8[], %(groups)s::text[], %(clients)s::text[],
        %(counts)s::int8[], %(lasts)s::timestamptz[], %(reports)s::uuid[])
        AS one(skip, consumer_group, client_name, number, last_at, report)
), new AS (
    INSERT INTO poison_skip_count
        (report, skip_id, consumer_group, client_name, count, counted_at)
    SELECT DISTINCT ON (report)
           report, skip, consumer_group, client_name, number, %(now)s
    FROM reports WHERE report IS NOT NULL ORDER BY report
    ON CONFLICT (report) DO NOTHING RETURNING report, skip_id, count
), added AS (
    SELECT skip, sum(number) AS number, max(last_at) AS last_at FROM (
        SELECT skip, number, last_at FROM reports WHERE report IS NULL
        UNION ALL
        SELECT new.skip_id, new.count, (
            SELECT max(reports.last_at) FROM reports WHERE reports.report = new.report)
        FROM new) every
    GROUP BY skip HAVING sum(number) > 0
)
UPDATE poison_skip SET applied = applied + added.number,
       last_applied_at = greatest(last_applied_at, least(added.last_at, %(now)s))
FROM added WHERE poison_skip.id = added.skip
"""


@transaction.atomic
def count_applied(
    *, reports: Sequence[AppliedSkip], principal: Principal, now: datetime
) -> list[bool]:
    """Count the messages that consumers report as skipped, for each skip.

    Returns one truth value per report: False for a skip that the principal cannot see.
    """
    ids = {report.skip for report in reports}
    visible = Skip.objects.on_topics(principal.topics).filter(pk__in=ids)
    # Lock them by a query of their own: a join would lock the topics too.
    visible_ids = set(visible.values_list("pk", flat=True))
    list(
        Skip.objects.filter(pk__in=visible_ids)
        .order_by("pk")
        .select_for_update(no_key=True)
        .values_list("pk")
    )
    counted = [report for report in reports if report.skip in visible_ids]
    if counted:
        with connection.cursor() as cursor:
            cursor.execute(_COUNT, {**_lists_by_member(counted), "now": now})
    return [report.skip in visible_ids for report in reports]


def _lists_by_member(reports: Sequence[AppliedSkip]) -> dict[str, list[Any]]:
    """Turn reports of skips into a list for each member, as SQL takes them."""
    return {
        "skips": [report.skip for report in reports],
        "groups": [report.consumer_group for report in reports],
        "clients": [report.client_name for report in reports],
        "counts": [report.count for report in reports],
        "lasts": [report.last_at for report in reports],
        "reports": [report.report for report in reports],
    }
