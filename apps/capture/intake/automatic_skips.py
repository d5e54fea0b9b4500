"""Automatic skips: when one consumer fails on a message, the others skip it.

Capture makes them where the broker delivers old messages again, for the consumer group
and the handler version that failed (for all versions if the report names none). A skip
lasts as long as the topic keeps its messages, or until every known position of the
topic is beyond it. Where the consumer itself may be at fault, the skip is suspected
at first: see `message_or_consumer_at_fault`.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper

from apps.capture.intake import message_or_consumer_at_fault
from apps.core import notify_channel
from apps.core.actor import Actor
from apps.poison import skip_list_revisions
from apps.poison.models import SkipList, WaitingSkip
from apps.poison.states import Because

log = logging.getLogger(__name__)

# The retention that we assume for a topic without one of its own.
DEFAULT_RETENTION_DAYS = 30
# Keep passed skips this long for a consumer that starts over and has no position yet.
GRACE_PERIOD = timedelta(days=1)
# Each consumer holds the whole list. A list that grows faster than this shows that the
# consumer is at fault, not its messages.
MOST_ACTIVE = 100_000
MOST_A_MINUTE = 1_000
# At most this many skips over the limit wait for room; the rest are not made.
MOST_WAITING = 100_000
BATCH_SIZE = 1_000

_TOPICS = """
SELECT DISTINCT topic.id FROM incoming JOIN brokers_topic topic
ON topic.id = incoming.topic_id
WHERE topic.replays AND incoming.status <> 'duplicate'
  AND incoming.consumer_group <> ''
"""

_FAILED = f"""
SELECT topic_id, consumer_group, handler_version, bookmark, publisher, seq, redrive,
       poison_id, concat_ws(': ', cause, nullif(error_type, '')) AS reason,
       cause IN ('crash', 'hang') AS is_killer, suspected AS is_doubted,
       suspected OR ({message_or_consumer_at_fault.MAY_BE_ITS_CONSUMER})
           AS is_suspected, ord
FROM incoming
WHERE topic_id = ANY(%(topics)s) AND status <> 'duplicate'
  AND consumer_group <> ''
"""  # noqa: S608 - all of it is ours

_WAITING = """
SELECT topic_id, consumer_group, handler_version, bookmark, publisher, seq, redrive,
       poison_id, reason, is_killer, false AS is_doubted, is_suspected, id AS ord
FROM poison_waiting_skip WHERE id = ANY(%(waiting)s)
"""

# Do not renew a skip in the first half of its life: a hundred consumers that fail
# together would take a hundred revisions.
_MAKE_SKIPS = """
WITH lives AS (
    SELECT id AS topic_id,
           make_interval(days => coalesce(retention_days, %(lives_days)s)) AS lives
    FROM brokers_topic WHERE id = ANY(%(topics)s)
), failed AS (
    SELECT DISTINCT ON (topic_id, consumer_group, handler_version, value_digest) *
    FROM (SELECT *, sha256(bookmark) AS value_digest FROM ({failed}) rows) hashed
    ORDER BY topic_id, consumer_group, handler_version, value_digest, is_suspected,
             ord DESC
), known AS (
    SELECT failed.*, %(now)s + lives AS expires_at, active.id AS skip_id,
           active.is_automatic AND NOT failed.is_suspected
           AND (active.is_suspected OR active.expires_at < %(now)s + lives / 2
                OR active.redrive IS DISTINCT FROM failed.redrive) AS is_due
    FROM failed JOIN lives USING (topic_id) LEFT JOIN LATERAL (
        -- OFFSET 0 makes Postgres look up by the digest alone. Its statistics lag
        -- behind a list that grows fast, and it would read the whole list each time.
        SELECT * FROM (SELECT * FROM poison_skip WHERE digest = failed.value_digest
                       AND removed_revision IS NULL OFFSET 0) same
        WHERE same.topic_id = failed.topic_id AND same.kind = 'bookmark'
          AND same.consumer_group = failed.consumer_group
          AND (same.handler_version IS NULL
               OR same.handler_version = failed.handler_version)
        -- Prefer the skip of this version to one for all versions.
        ORDER BY same.handler_version NULLS LAST LIMIT 1) active ON true
), waits AS (
    SELECT topic_id, count(*) AS number, count(*) FILTER (WHERE is_killer) AS killers
    FROM poison_waiting_skip WHERE topic_id = ANY(%(topics)s) GROUP BY topic_id
), ranked AS (
    SELECT known.*, list.revision, coalesce(waits.number, 0) AS waiting,
           least(%(most_active)s - list.automatic, %(most_a_minute)s
                 - CASE WHEN list.minute = %(minute)s THEN list.made ELSE 0 END)
           -- Waiting killers take precedence over new failures.
           - CASE WHEN is_killer OR NOT %(is_fresh)s THEN 0
                  ELSE coalesce(waits.killers, 0) END AS room,
           row_number() OVER (PARTITION BY known.topic_id, skip_id IS NULL
                              ORDER BY is_killer DESC, ord) AS rank
    FROM known JOIN poison_skip_list list ON list.topic_id = known.topic_id
    LEFT JOIN waits ON waits.topic_id = known.topic_id
), placed AS (
    SELECT *, skip_id IS NULL AND rank <= room AS is_new,
           skip_id IS NULL AND rank > room AND %(is_fresh)s AS is_left,
           waiting + rank - greatest(room, 0) <= %(most_waiting)s AS may_wait
    FROM ranked
), allowed AS (
    SELECT placed.*,
           revision + row_number() OVER (PARTITION BY topic_id ORDER BY ord) AS next
    FROM placed WHERE is_new OR is_due
), made AS (
    INSERT INTO poison_skip (topic_id, consumer_group, handler_version, kind, value,
        publisher, seq, redrive, poison_id, reason, by, is_automatic, is_suspected,
        firm_at, at, expires_at, revision, removed_by, because, removed_reason, applied)
    SELECT topic_id, consumer_group, handler_version, 'bookmark', bookmark, publisher,
           seq, redrive, poison_id, reason, %(by)s, true, is_suspected,
           CASE WHEN is_suspected AND NOT is_doubted THEN %(firm_at)s END,
           %(now)s, expires_at, next, '', '', '', 0
    FROM allowed WHERE is_new ORDER BY ord
), left_waiting AS (
    INSERT INTO poison_waiting_skip (topic_id, consumer_group, handler_version,
        bookmark, publisher, seq, redrive, poison_id, reason, is_killer, is_suspected,
        at)
    SELECT topic_id, consumer_group, handler_version, bookmark, publisher, seq,
           redrive, poison_id, reason, is_killer, is_suspected, %(now)s
    FROM placed WHERE is_left AND may_wait AND NOT is_doubted ORDER BY ord
    ON CONFLICT DO NOTHING
), due AS (
    SELECT id FROM poison_skip WHERE id IN (SELECT skip_id FROM allowed WHERE is_due)
    ORDER BY id FOR NO KEY UPDATE
), renewed AS (
    UPDATE poison_skip SET at = %(now)s, expires_at = allowed.expires_at,
           redrive = allowed.redrive, revision = allowed.next,
           is_suspected = false, firm_at = NULL
    FROM due JOIN allowed ON allowed.skip_id = due.id WHERE poison_skip.id = due.id
), totals AS (
    SELECT topic_id, count(*) FILTER (WHERE is_new OR is_due) AS changes,
           count(*) FILTER (WHERE is_new) AS made,
           count(*) FILTER (WHERE is_left AND may_wait) AS waiting,
           count(*) FILTER (WHERE is_left AND NOT may_wait) AS withheld
    FROM placed GROUP BY topic_id
)
UPDATE poison_skip_list list SET
    revision = list.revision + totals.changes,
    automatic = list.automatic + totals.made,
    made = totals.made + CASE WHEN list.minute = %(minute)s THEN list.made ELSE 0 END,
    minute = %(minute)s,
    withheld = list.withheld + totals.withheld,
    withheld_at = CASE WHEN totals.withheld > 0 THEN %(now)s ELSE list.withheld_at END
FROM totals WHERE list.topic_id = totals.topic_id
  AND totals.changes + totals.waiting + totals.withheld > 0
RETURNING list.topic_id, totals.changes, totals.waiting, totals.withheld
"""

_SETTLE_WAITING = """
DELETE FROM poison_waiting_skip waiting USING poison_poison poison, brokers_topic topic
WHERE waiting.id = ANY(%(waiting)s)
  AND poison.id = waiting.poison_id AND topic.id = waiting.topic_id
  AND (poison.suspected
       OR waiting.at < %(now)s
          - make_interval(days => coalesce(topic.retention_days, %(lives_days)s))
       OR EXISTS (
           SELECT FROM (SELECT * FROM poison_skip
                        WHERE digest = sha256(waiting.bookmark)
                          AND removed_revision IS NULL OFFSET 0) same
           WHERE same.topic_id = waiting.topic_id AND same.kind = 'bookmark'
             AND same.consumer_group = waiting.consumer_group
             AND (same.handler_version IS NULL
                  OR same.handler_version = waiting.handler_version)))
"""

# A reader has settled everything up to its mark for a publisher. A reader without a
# mark for the publisher may still receive all of its messages.
_PASSED = """
WITH readers AS (
    SELECT topic_id, count(*) AS number FROM bookmarks_position
    WHERE source = 'sdk' GROUP BY topic_id
), passed AS (
    SELECT reader.topic_id, mark.publisher,
           min(least(mark.processed, mark.persisted)) AS seq
    FROM bookmarks_position reader JOIN readers USING (topic_id)
    JOIN bookmarks_mark mark ON mark.position_id = reader.id
    WHERE reader.source = 'sdk'
    GROUP BY reader.topic_id, mark.publisher, readers.number
    HAVING count(*) = readers.number
)
SELECT skip.topic_id, skip.id FROM poison_skip skip JOIN passed
ON passed.topic_id = skip.topic_id AND passed.publisher = coalesce(skip.publisher, '')
   AND skip.seq <= passed.seq
WHERE skip.is_automatic AND skip.removed_revision IS NULL AND skip.at < %(before)s
ORDER BY skip.topic_id, skip.id LIMIT %(limit)s
"""


def make_skips(cursor: CursorWrapper, *, now: datetime) -> None:
    """Make or renew the automatic skips for the failures of a merge.

    This is the last step of `staged_occurrences_merge`, inside its transaction.
    """
    cursor.execute(_TOPICS)
    topics = [topic_id for (topic_id,) in cursor.fetchall()]
    if not topics:
        return
    skip_list_revisions.lock_lists(topics)
    _make_skips(cursor, _FAILED, topics, now=now)
    message_or_consumer_at_fault.update_poisons(cursor)


def make_waiting_skips(*, now: datetime) -> int:
    """Make the skips that waited for room, killers first; return how many."""
    waiting = WaitingSkip.objects.order_by("topic_id").values_list(
        "topic_id", flat=True
    )
    return sum(
        _make_waiting_skips(topic_id, now=now) for topic_id in list(waiting.distinct())
    )


@transaction.atomic
def _make_waiting_skips(topic_id: int, *, now: datetime) -> int:
    """Make as many waiting skips of a topic as have room; return how many."""
    skip_list_revisions.lock_lists([topic_id])
    room = _room(SkipList.objects.get(topic=topic_id), now=now)
    waiting = WaitingSkip.objects.filter(topic=topic_id).killers_first()
    batch = list(waiting.values_list("pk", flat=True)[: max(0, room)])
    if not batch:
        return 0
    with connection.cursor() as cursor:
        values: dict[str, Any] = {
            "waiting": batch,
            "now": now,
            "lives_days": DEFAULT_RETENTION_DAYS,
        }
        # Delete those that no longer need a skip: it exists, is in doubt or expired.
        cursor.execute(_SETTLE_WAITING, values)
        number = _make_skips(cursor, _WAITING, [topic_id], now=now, waiting=batch)
        cursor.execute(_SETTLE_WAITING, values)
    return number


def _room(row: SkipList, *, now: datetime) -> int:
    """Return how many more automatic skips a topic may get this minute."""
    this_minute = row.made if row.minute == _minute_of(now) else 0
    return min(MOST_ACTIVE - row.automatic, MOST_A_MINUTE - this_minute)


def _minute_of(now: datetime) -> datetime:
    """Return the start of the minute in which new automatic skips are counted."""
    return now.replace(second=0, microsecond=0)


def _make_skips(
    cursor: CursorWrapper,
    failed: str,
    topics: list[int],
    *,
    now: datetime,
    waiting: list[int] | None = None,
) -> int:
    """Insert or renew skips for failures while there is room; return how many."""
    values: dict[str, Any] = {
        "topics": topics,
        "now": now,
        "minute": _minute_of(now),
        "lives_days": DEFAULT_RETENTION_DAYS,
        "most_active": MOST_ACTIVE,
        "most_a_minute": MOST_A_MINUTE,
        "most_waiting": MOST_WAITING,
        "is_fresh": waiting is None,
        "waiting": waiting,
        "by": str(Actor.system("capture")),
        **message_or_consumer_at_fault.query_parameters(now=now),
    }
    cursor.execute(_MAKE_SKIPS.format(failed=failed), values)
    number = 0
    for topic_id, changes, waiting_count, withheld in cursor.fetchall():
        number += changes
        if changes:
            notify_channel.notify_skips(topic_id=topic_id)
            log.info("topic %d: %d skips made or renewed", topic_id, changes)
        if waiting_count or withheld:
            log.warning(
                "topic %d: %d failures wait for room on the skip list, and %d get no"
                " skip, for it has %d, or got %d this minute: see what its"
                " consumers have in common",
                topic_id,
                waiting_count,
                withheld,
                MOST_ACTIVE,
                MOST_A_MINUTE,
            )
    return number


def end_passed(*, now: datetime) -> int:
    """End the automatic skips that every known position has passed; return how many.

    A position that is moved back afterwards tries these messages again.
    """
    number = 0
    while passed := _passed_skips(before=now - GRACE_PERIOD):
        for topic_id, rows in groupby(passed, key=lambda row: row[0]):
            with transaction.atomic():
                number += skip_list_revisions.end(
                    topic_id=topic_id,
                    skips=[skip_id for _, skip_id in rows],
                    because=Because.PASSED,
                    actor=Actor.system("skips"),
                    now=now,
                )
    return number


def _passed_skips(*, before: datetime) -> list[tuple[int, int]]:
    """Select (topic id, skip id) of skips that all positions have passed."""
    with connection.cursor() as cursor:
        cursor.execute(_PASSED, {"before": before, "limit": BATCH_SIZE})
        return [(topic_id, skip_id) for topic_id, skip_id in cursor.fetchall()]
