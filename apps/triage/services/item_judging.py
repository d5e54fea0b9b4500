"""Take the poisons of a confirmed operation: hold those to send, or decide at once.

Both go through the items in order, some windows in each transaction. What cannot be
acted on any more is skipped, with the reason: another operation holds it, or it was
decided since the preview.

A small operation is judged when it is confirmed, so that the next person who confirms
the same messages learns it at once. Only what is sent is held: to drop and to restore
is decided in the transaction that judges the poisons, so there is no time in which
another operation could take them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from apps.core.errors import Refused
from apps.core.queryset_sql import read_by_index
from apps.poison.states import silent_before
from apps.triage.models import Operation
from apps.triage.services.fencing import fence
from apps.triage.services.skip_reasons import REASONS
from apps.triage.states import SENDS, Verb

# Windows of a transaction.
AT_ONCE = 10

# Items that the preview skipped are judged no more.
_LOCK = """
SELECT FROM poison_poison WHERE id IN (
    SELECT poison_id FROM triage_selected_item item
    WHERE operation_id = %(operation)s AND number >= %(first)s AND number < %(end)s
      AND NOT EXISTS (SELECT FROM triage_skipped_item
                      WHERE operation_id = item.operation_id AND number = item.number))
ORDER BY id FOR NO KEY UPDATE
"""

# A statement of its own: it sees what was committed before the poisons were locked.
# OFFSET 0 makes Postgres look up each poison, whatever it knows of the tables.
_JUDGED = """
WITH judged AS (
    SELECT item.number, poison_poison.id, poison_poison.topic_id,
           poison_poison.redrives, CASE
           WHEN holder.operation IS NOT NULL
           THEN 'operation ' || holder.operation || ' has it'
           {reasons}
           ELSE '' END AS reason
    FROM (SELECT number, poison_id FROM triage_selected_item item
          WHERE operation_id = %(operation)s
            AND number >= %(first)s AND number < %(end)s
            AND NOT EXISTS (
                SELECT FROM triage_skipped_item
                WHERE operation_id = item.operation_id AND number = item.number)
          OFFSET 0) item
    JOIN poison_poison ON poison_poison.id = item.poison_id
    LEFT JOIN poison_hold holder ON holder.poison_id = item.poison_id
), acted AS (
    {act}
), skipped AS (
    INSERT INTO triage_skipped_item (operation_id, number, reason)
    SELECT %(operation)s, number,
           CASE reason WHEN '' THEN 'another operation has it' ELSE reason END
    FROM judged WHERE number NOT IN (SELECT number FROM acted)
    RETURNING number
), before AS (
    SELECT number FROM triage_skipped_item
    WHERE operation_id = %(operation)s AND number >= %(first)s AND number < %(end)s
)
INSERT INTO poison_window (operation, first, items, state, run, sending_to, marked_at,
    sending, unknown, sent, moved, confirmed, recurred, refused, skipped, dropped,
    restored)
SELECT %(operation)s, %(first)s + (number - %(first)s) / %(size)s * %(size)s,
       count(*), 'waiting', 0, 0, NULL,
       0, 0, 0, 0, 0, 0, 0, count(*) FILTER (WHERE skip), {dropped}, {restored}
FROM (
    SELECT number, number IN (SELECT number FROM skipped UNION ALL
                              SELECT number FROM before) AS skip
    FROM generate_series(%(first)s, %(end)s - 1) AS number
) item
GROUP BY 2
"""

_HOLD = """
    INSERT INTO poison_hold (poison_id, operation, item, n, topic_id, queue)
    SELECT id, %(operation)s, number, redrives + 1,
           coalesce(%(target)s, redirect.target_id, judged.topic_id), %(queue)s
    FROM judged LEFT JOIN triage_redirect redirect
         ON redirect.operation_id = %(operation)s
         AND redirect.topic_id = judged.topic_id
    WHERE reason = '' ORDER BY id
    ON CONFLICT (poison_id) DO NOTHING
    RETURNING item AS number
"""

_DROP = """
    UPDATE poison_poison SET state = 'dropped', dropped_at = %(now)s
    FROM judged WHERE judged.reason = '' AND poison_poison.id = judged.id
    RETURNING judged.number
"""

_RESTORE = """
    UPDATE poison_poison SET state = 'open', dropped_at = NULL
    FROM judged WHERE judged.reason = '' AND poison_poison.id = judged.id
    RETURNING judged.number
"""

# Nothing is left to be sent of these.
_FINISH = """
UPDATE poison_window SET state = 'done', marked_at = %(now)s
WHERE operation = %(operation)s AND first >= %(first)s AND first < %(end)s
  AND (NOT %(sends)s OR skipped = items)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Act:
    """What is done with the items that may be acted on, and how a window counts it."""

    statement: str
    dropped: str = "0"
    restored: str = "0"


_ACTED = "count(*) FILTER (WHERE NOT skip)"
_ACTS: Mapping[Verb, _Act] = {
    Verb.REDRIVE: _Act(statement=_HOLD),
    Verb.GIVE_BACK: _Act(statement=_HOLD),
    Verb.DROP: _Act(statement=_DROP, dropped=_ACTED),
    Verb.RESTORE: _Act(statement=_RESTORE, restored=_ACTED),
}


@transaction.atomic
def judge_next(operation: Operation, *, now: datetime) -> bool:
    """Take the next items of a run; return False if none is left, or it must stop.

    Raises LockLost if a newer run has started.
    """
    orders = fence(operation=operation.pk, run=operation.run)
    if not orders.may_go_on or operation.judged >= operation.total:
        return False
    judge(operation, now=now)
    return True


def judge(operation: Operation, *, now: datetime) -> None:
    """Hold, decide or skip the next items of an operation whose row is locked."""
    read_by_index()
    verb = Verb(operation.verb)
    size = operation.window_size
    first = operation.judged
    end = min(first + AT_ONCE * size, operation.total)
    act = _ACTS[verb]
    values: dict[str, Any] = {
        "operation": operation.pk,
        "first": first,
        "end": end,
        "size": size,
        "target": operation.target_topic_id,
        "queue": _queue_to_give_back_to(operation),
        "silent_before": silent_before(now),
        "now": now,
        "sends": verb in SENDS,
    }
    statement = _JUDGED.format(
        reasons=REASONS[verb],
        act=act.statement,
        dropped=act.dropped,
        restored=act.restored,
    )
    with connection.cursor() as cursor:
        cursor.execute(_LOCK, values)
        cursor.execute(statement, values)
        cursor.execute(_FINISH, values)
    operation.judged = end
    operation.save(update_fields=["judged"])


# The last one is the least likely to have been sent.
_HELD_FOR = """
SELECT queue FROM poison_hold WHERE operation = %(operation)s ORDER BY item DESC LIMIT 1
"""

_FOLLOW = """
UPDATE poison_hold SET queue = %(queue)s
WHERE operation = %(operation)s AND queue <> %(queue)s
  AND NOT EXISTS (SELECT FROM poison_redrive known
                  WHERE known.poison_id = poison_hold.poison_id
                    AND known.n = poison_hold.n)
"""


@transaction.atomic
def follow_queue(operation: Operation) -> None:
    """Let held messages be given back to the queue that their topic has now.

    What may have been sent stays with its queue. Raises LockLost if a newer run has
    started, Refused if the topic has no dead-letter queue any more.
    """
    fence(operation=operation.pk, run=operation.run)
    with connection.cursor() as cursor:
        cursor.execute(_HELD_FOR, {"operation": operation.pk})
        row = cursor.fetchone()
        if row and row[0] != (queue := _queue_to_give_back_to(operation)):
            cursor.execute(_FOLLOW, {"operation": operation.pk, "queue": queue})


def _queue_to_give_back_to(operation: Operation) -> str:
    """Name the dead-letter queue to give back to; "" for any other operation."""
    topic = operation.target_topic
    if operation.verb != Verb.GIVE_BACK or topic is None:
        return ""
    if not topic.dead_letter_queue:
        raise Refused(f"the topic {topic.name} has no dead-letter queue any more")
    return topic.dead_letter_queue
