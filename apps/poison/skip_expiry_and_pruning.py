"""End the skips that expired, and delete those that ended long ago."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from apps.core.actor import Actor
from apps.poison import skip_list_revisions
from apps.poison.models import Skip, SkipCount, SkipList
from apps.poison.states import Because

BATCH_SIZE = 1_000
# How long ended automatic skips and skip counts stay: readers and retries may be late.
RETENTION = timedelta(days=30)

_PRUNE = """
WITH pruned AS (
    DELETE FROM poison_skip WHERE id IN (
        SELECT id FROM poison_skip
        WHERE topic_id = %(topic)s AND is_automatic AND removed_at < %(before)s
        ORDER BY removed_revision LIMIT %(limit)s)
    RETURNING removed_revision
)
UPDATE poison_skip_list list SET floor = greatest(list.floor, totals.last)
FROM (SELECT max(removed_revision) AS last, count(*) AS number FROM pruned) totals
WHERE topic_id = %(topic)s AND totals.number > 0
RETURNING totals.number
"""


def expire(*, now: datetime) -> int:
    """End the skips that have expired; return how many."""
    expired = Skip.objects.active().filter(expires_at__lte=now)
    topics = expired.order_by("topic_id").values_list("topic_id", flat=True).distinct()
    number = 0
    for topic_id in list(topics):
        due = expired.filter(topic=topic_id).order_by("id").values_list("pk", flat=True)
        while batch := list(due[:BATCH_SIZE]):
            with transaction.atomic():
                number += skip_list_revisions.end(
                    topic_id=topic_id,
                    skips=batch,
                    because=Because.EXPIRED,
                    actor=Actor.system("skips"),
                    now=now,
                )
    return number


def prune(*, now: datetime) -> int:
    """Delete automatic skips that ended long ago; return how many.

    A reader with an older revision must read the whole list again. Skips that people
    made stay.
    """
    before = now - RETENTION
    SkipCount.objects.filter(counted_at__lt=before).delete()
    number = 0
    for topic_id in SkipList.objects.order_by("topic_id").values_list("pk", flat=True):
        values = {"topic": topic_id, "before": before, "limit": BATCH_SIZE}
        while pruned := _prune_topic(values):
            number += pruned
    return number


@transaction.atomic
def _prune_topic(values: dict[str, Any]) -> int:
    """Delete old automatic skips of a topic, its list locked; return how many."""
    skip_list_revisions.lock_lists([values["topic"]])
    return skip_list_revisions.query_number(_PRUNE, values)
