"""Hold, drop, restore or skip the items of a confirmed operation.

Those to send are held, others are decided at once: in order, some windows in each
transaction. What cannot be acted on any more is skipped, with the reason: another
operation holds it, or it was decided since the preview.

A small operation is judged when it is confirmed, so that the next person who confirms
the same items learns it at once. What a run acts on later is held. Poisons are dropped
and restored in the transaction that judges them, so there is no time in which another
operation could take them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import connection, transaction

from apps.core.queryset_sql import read_by_index
from apps.triage.item_kinds import kind_of
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from apps.triage.services.fencing import fence
from apps.triage.services.give_back_target_queue import queue_to_give_back_to
from apps.triage.services.reasons_for_omitted_messages import reason_values

# Windows of a transaction.
AT_ONCE = 10

# Items that the preview skipped are judged no more.
_LOCK = """
SELECT FROM {table} WHERE id IN (
    SELECT {key} FROM {items} item
    WHERE operation_id = %(operation)s AND number >= %(first)s AND number < %(end)s
      AND NOT EXISTS (SELECT FROM triage_skipped_item
                      WHERE operation_id = item.operation_id AND number = item.number))
ORDER BY id FOR NO KEY UPDATE
"""

# A statement of its own: it sees what was committed before the items were locked.
# OFFSET 0 makes Postgres look up each item, whatever it knows of the tables.
_JUDGED = """
WITH judged AS (
    SELECT item.number, {table}.id{columns}, CASE
           WHEN holder.operation IS NOT NULL
           THEN 'operation ' || holder.operation || ' has it'
           {reasons}
           ELSE '' END AS reason
    FROM (SELECT number, {key} FROM {items} item
          WHERE operation_id = %(operation)s
            AND number >= %(first)s AND number < %(end)s
            AND NOT EXISTS (
                SELECT FROM triage_skipped_item
                WHERE operation_id = item.operation_id AND number = item.number)
          OFFSET 0) item
    {join} {table} ON {table}.id = item.{key}
    LEFT JOIN {holds} holder ON holder.{key} = item.{key}
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

# Nothing is left to be sent of these.
_FINISH = """
UPDATE poison_window SET state = 'done', marked_at = %(now)s
WHERE operation = %(operation)s AND first >= %(first)s AND first < %(end)s
  AND (NOT %(holds)s OR skipped = items)
"""


@transaction.atomic
def judge_next(operation: Operation, *, now: datetime) -> bool:
    """Hold or decide a run's next items; return False if it is to end.

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
    kind, verb = kind_of(operation), Verb(operation.verb)
    judging = kind.judging[verb]
    size = operation.window_size
    first = operation.judged
    end = min(first + AT_ONCE * size, operation.total)
    values: dict[str, Any] = {
        **reason_values(operation, now=now),
        "first": first,
        "end": end,
        "size": size,
        "queue": queue_to_give_back_to(operation),
        "now": now,
        "holds": judging.holds,
    }
    statement = kind.sql(
        _JUDGED,
        reasons=kind.reasons[verb],
        act=judging.statement,
        dropped=judging.dropped,
        restored=judging.restored,
    )
    with connection.cursor() as cursor:
        if kind.is_locked_to_judge:
            cursor.execute(kind.sql(_LOCK), values)
        cursor.execute(statement, values)
        cursor.execute(_FINISH, values)
    operation.judged = end
    operation.save(update_fields=["judged"])
