"""Give each change of a topic's skip list its revision.

Every change locks the list of its topic, takes the next revision, and keeps the lock
until it commits. So a reader that has all of revision n, and then asks for the changes
after n, misses none. Lists are locked in the order of their topics' ids, and skips in
the order of theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.db import connection

from apps.core import notify_channel
from apps.core.actor import Actor
from apps.poison.states import Because

_TAKE = """
INSERT INTO poison_skip_list (topic_id, revision) VALUES (%s, 1)
ON CONFLICT (topic_id) DO UPDATE SET revision = poison_skip_list.revision + 1
RETURNING revision
"""

_END = """
WITH locked AS (
    SELECT id, is_automatic FROM poison_skip
    WHERE topic_id = %(topic)s AND id = ANY(%(skips)s) AND removed_revision IS NULL
    ORDER BY id FOR NO KEY UPDATE
), due AS (
    SELECT id, is_automatic, row_number() OVER (ORDER BY id) AS place FROM locked
), ended AS (
    UPDATE poison_skip SET removed_revision = list.revision + due.place,
           removed_at = %(now)s, removed_by = %(by)s, because = %(because)s,
           removed_reason = %(reason)s
    FROM due, poison_skip_list list
    WHERE poison_skip.id = due.id AND list.topic_id = %(topic)s
)
UPDATE poison_skip_list list SET revision = list.revision + totals.number,
       automatic = list.automatic - totals.automatic
FROM (SELECT count(*) AS number, count(*) FILTER (WHERE is_automatic) AS automatic
      FROM due) totals
WHERE topic_id = %(topic)s AND totals.number > 0
RETURNING totals.number
"""


def lock_lists(topics: Iterable[int]) -> None:
    """Lock the skip lists of these topics until the transaction ends."""
    topic_ids = sorted(set(topics))
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO poison_skip_list (topic_id) SELECT unnest(%s::int8[])"
            " ON CONFLICT (topic_id) DO NOTHING",
            [topic_ids],
        )
        cursor.execute(
            "SELECT FROM poison_skip_list WHERE topic_id = ANY(%s) ORDER BY topic_id"
            " FOR NO KEY UPDATE",
            [topic_ids],
        )


def next_revision(topic_id: int) -> int:
    """Lock a topic's skip list until the transaction ends; take a revision."""
    return query_number(_TAKE, [topic_id])


def end(
    *,
    topic_id: int,
    skips: Sequence[int],
    because: Because,
    actor: Actor,
    reason: str = "",
    now: datetime,
) -> int:
    """End active skips of a topic, each with a revision of its own; return how many.

    Call it inside a transaction.
    """
    lock_lists([topic_id])
    values = {
        "topic": topic_id,
        "skips": list(skips),
        "because": because.value,
        "by": str(actor),
        "reason": reason,
        "now": now,
    }
    ended = query_number(_END, values)
    if ended:
        notify_channel.notify_skips(topic_id=topic_id)
    return ended


def query_number(statement: str, values: Any) -> int:
    """Return the number that a statement on skip lists selects; without a row, 0."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        row = cursor.fetchone()
    return 0 if row is None else int(row[0])
