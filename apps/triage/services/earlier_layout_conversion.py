"""Convert operations of the release before: its items had states, in another table.

The rows of an operation move in the order of their ids, some thousands in each
transaction, which leaves the rest as it was: after a kill at any instant, the next call
goes on with the first row that is left. From the first moment on, no worker of the
release before can run the operation; when all its rows have moved, ours can.

What such a worker was sending when it ended is in doubt. It is sent again under the
redrive id that it had, as after the death of a run.

A preview stays as it is until a person looks at it or confirms it here: the release
before may still confirm it, too. Operations that a worker of the release before is
running are left to it until it lets go of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import F, Max

from apps.core import advisory_locks
from apps.core.arrays import array
from apps.core.queryset_sql import read_by_index
from apps.poison.services.locking import lock as lock_poisons
from apps.triage.errors import NotConverted
from apps.triage.models import Item, Operation, SkippedItem, lock_name
from apps.triage.operation_states import (
    LAYOUT,
    LAYOUT_BEFORE,
    LAYOUT_IN_CONVERSION,
    LAYOUT_OF_OTHER_KINDS,
    LAYOUTS,
    SENDS,
    UNFINISHED,
    OperationState,
    Verb,
)

EARLIER_ITEMS: Final = "triage_item"
# Items of a transaction: a multiple of the size of a window. On a busy machine it takes
# half a second, for which who answers for these messages waits.
AT_ONCE = 2_500
# Finished operations that another worker may just be converting.
MOST_BUSY = 5
TROUBLE = "It was begun by the release before, and is being converted."

# Each of the five states has its items in order in an index; all of them together have
# none.
_NEXT = f"""
SELECT item.id, poison_id, state = 'claimed' OR held
FROM ({
    " UNION ALL ".join(
        f"(SELECT id FROM {EARLIER_ITEMS}"
        f" WHERE operation_id = %(operation)s AND state = '{state}'"
        " ORDER BY id LIMIT %(most)s)"
        for state in ("waiting", "claimed", "skipped", "dropped", "restored")
    )
}) one
JOIN {EARLIER_ITEMS} item USING (id) ORDER BY item.id LIMIT %(most)s
"""  # noqa: S608 - made of our own names

# `standing` is as windows count it. What waits needs a hold if it will be sent.
# Of an unfinished drop or restore, only what stands before the first item that waits
# gets windows: the run judges the others, those that were skipped included.
_MOVE = f"""
WITH item AS MATERIALIZED (
    SELECT %(first)s::int4 + place - 1 AS number, item.id, item.poison_id, item.reason,
           item.state, item.redrive_id, sent.n, sent.topic_id,
           sent.queue, sent.sent_at, sent.outcome, poison.redrives,
           poison.topic_id AS came_from, holder.operation AS holder
    FROM unnest(%(items)s::int8[]) WITH ORDINALITY AS one(id, place)
    JOIN {EARLIER_ITEMS} item USING (id)
    JOIN poison_poison poison ON poison.id = item.poison_id
    LEFT JOIN poison_redrive sent ON sent.id = item.redrive_id
    LEFT JOIN poison_hold holder ON holder.poison_id = item.poison_id
), judged AS MATERIALIZED (
    SELECT item.number, CASE
               WHEN state <> 'waiting' OR NOT %(will_send)s THEN item.reason
               WHEN holder <> %(operation)s THEN 'operation ' || holder || ' has it'
               ELSE %(no_queue)s END AS reason
    FROM item
), moving AS MATERIALIZED (
    SELECT item.*, judged.reason AS why_skipped, CASE
               WHEN judged.reason <> '' THEN 'skipped'
               WHEN outcome = 'sending' THEN 'unknown'
               ELSE coalesce(outcome, state) END AS standing
    FROM item JOIN judged USING (number)
), selected AS (
    INSERT INTO triage_selected_item (operation_id, number, poison_id)
    SELECT %(operation)s, number, poison_id FROM moving ORDER BY number
), skipped AS (
    INSERT INTO triage_skipped_item (operation_id, number, reason)
    SELECT %(operation)s, number, why_skipped FROM moving WHERE standing = 'skipped'
), kept AS MATERIALIZED (
    SELECT * FROM moving
    WHERE %(will_send)s AND standing IN ('waiting', 'unknown')
      AND coalesce(holder, %(operation)s) = %(operation)s
), freed AS (
    DELETE FROM poison_hold USING moving
    WHERE poison_hold.poison_id = moving.poison_id
      AND poison_hold.operation = %(operation)s
      AND moving.number NOT IN (SELECT number FROM kept)
), held AS (
    INSERT INTO poison_hold (poison_id, operation, item, n, topic_id, queue, redrive)
    SELECT poison_id, %(operation)s, number, coalesce(n, redrives + 1),
           coalesce(topic_id, %(target)s, came_from), coalesce(queue, %(queue)s),
           redrive_id
    FROM kept ORDER BY poison_id
    ON CONFLICT (poison_id) DO UPDATE SET item = excluded.item, n = excluded.n,
        topic_id = excluded.topic_id, queue = excluded.queue, redrive = excluded.redrive
), sent AS (
    UPDATE poison_redrive SET operation = %(operation)s, item = moving.number,
        epoch = 0,
        outcome = CASE poison_redrive.outcome WHEN 'sending' THEN 'unknown'
                  ELSE poison_redrive.outcome END
    FROM moving WHERE poison_redrive.id = moving.redrive_id
), in_doubt AS (
    UPDATE poison_poison SET state = 'open'
    FROM moving WHERE poison_poison.id = moving.poison_id
      AND moving.standing = 'unknown' AND poison_poison.state = 'redriving'
), removed AS (
    DELETE FROM {EARLIER_ITEMS} WHERE id = ANY(%(items)s::int8[])
), covered AS MATERIALIZED (
    SELECT * FROM moving
    WHERE %(has_windows)s AND (%(all_covered)s OR number < coalesce(
        (SELECT min(number) FROM moving WHERE standing = 'waiting'), number + 1))
), windows AS (
    INSERT INTO poison_window (operation, first, items, state, run, sending_to,
        marked_at, sending, unknown, sent, moved, confirmed, recurred, refused, skipped,
        dropped, restored)
    SELECT %(operation)s, min(number), count(*),
           CASE WHEN count(*) FILTER (WHERE number IN (SELECT number FROM kept)) > 0
                THEN 'waiting' ELSE 'done' END,
           0, 0, coalesce(max(sent_at), %(ended)s), 0,
           count(*) FILTER (WHERE standing = 'unknown'),
           count(*) FILTER (WHERE standing = 'sent'),
           count(*) FILTER (WHERE standing = 'moved'),
           count(*) FILTER (WHERE standing = 'confirmed'),
           count(*) FILTER (WHERE standing = 'recurred'),
           count(*) FILTER (WHERE standing = 'refused'),
           count(*) FILTER (WHERE standing = 'skipped'),
           count(*) FILTER (WHERE standing = 'dropped'),
           count(*) FILTER (WHERE standing = 'restored')
    FROM covered GROUP BY number / %(size)s
)
SELECT max(number) + 1 FROM covered
"""  # noqa: S608 - made of our own names


def require_converted(operation: Operation) -> None:
    """Raise NotConverted for an operation whose items are not all here yet."""
    if operation.layout not in LAYOUTS:
        raise NotConverted(
            f"Operation {operation.pk} was made by the release before, and is still "
            "being converted: try again in a moment."
        )


def convert_preview(operation: Operation) -> Operation:
    """Convert a preview that a person wants to see here, or at least its first items.

    The next calls, or those of `convert_next`, convert the rest. Returns the operation
    as it is then.
    """
    if operation.layout in LAYOUTS or operation.state != OperationState.PREVIEW:
        return operation
    _begin(operation)
    _convert_some(operation.pk)
    return Operation.objects.select_related("target_topic").get(pk=operation.pk)


def convert_next(*, at_once: int = AT_ONCE) -> bool:
    """Convert the next items of an operation; return False if there is nothing to do.

    Begins with unfinished operations, then takes the newest of the others first.
    `at_once` is a multiple of the size of a window.
    """
    return any(_convert(each, at_once=at_once) for each in _candidates())


def _candidates() -> Iterator[Operation]:
    """List operations to convert to this release, the most urgent first."""
    # As the index has it, without the other kinds.
    earlier = Operation.objects.exclude(layout=LAYOUT)
    earlier = earlier.exclude(layout=LAYOUT_OF_OTHER_KINDS)
    begun = earlier.previews().filter(layout=LAYOUT_IN_CONVERSION)
    yield from begun.order_by("-id")
    yield from earlier.unfinished().order_by("id")
    finished = earlier.confirmed().exclude(state__in=UNFINISHED)
    yield from finished.recent_first()[:MOST_BUSY]


def _convert(operation: Operation, *, at_once: int) -> bool:
    """Convert some items of an operation of the release before, unless others do."""
    if operation.layout == LAYOUT_BEFORE:
        with _run_lock(operation) as is_free:
            if not is_free or not _begin(operation):
                return False
    return _convert_some(operation.pk, at_once=at_once)


@contextmanager
def _run_lock(operation: Operation) -> Iterator[bool]:
    """Lock an operation against the release before; yield False if one runs it."""
    if operation.state not in UNFINISHED:
        yield True
        return
    with advisory_locks.attempt(lock_name(operation.pk)) as run_lock:
        yield run_lock is not None


@transaction.atomic
def _begin(operation: Operation) -> bool:
    """Take an operation from the workers of the release before; False if it changed.

    A run that has lost its lock, and does not know it yet, can write nothing more.
    """
    unchanged = Operation.objects.filter(
        pk=operation.pk,
        layout=LAYOUT_BEFORE,
        state=operation.state,
        taken=operation.taken,
    )
    # Its items may just be taken, or it may be confirmed: that takes its time.
    if not unchanged.select_for_update(no_key=True, skip_locked=True).exists():
        return False
    is_waiting = operation.state in UNFINISHED
    unchanged.update(
        layout=LAYOUT_IN_CONVERSION,
        epoch=F("epoch") + 1,
        trouble=TROUBLE if is_waiting else operation.trouble,
    )
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batch:
    """The next rows of an operation to convert, by their ids; the first has `first`."""

    first: int
    items: list[int]
    poisons_to_lock: list[int]
    is_last: bool


@transaction.atomic
def _convert_some(operation_id: int, *, at_once: int = AT_ONCE) -> bool:
    """Convert the next items of an operation; end its conversion if none is left.

    Returns False if another process converts some just now, or has converted all.
    """
    in_conversion = Operation.objects.filter(layout=LAYOUT_IN_CONVERSION)
    rows = in_conversion.select_for_update(skip_locked=True, no_key=True, of=("self",))
    operation = rows.select_related("target_topic").filter(pk=operation_id).first()
    if operation is None:
        return False
    read_by_index()
    batch = _next_batch(operation, at_once)
    # No consumer's answer comes in between: who records one locks the poison first.
    lock_poisons(batch.poisons_to_lock)
    if batch.items:
        _move(operation, batch)
    if batch.is_last:
        _end(operation, total=batch.first + len(batch.items))
    return True


def _next_batch(operation: Operation, at_once: int) -> _Batch:
    """Find the operation's items that are converted next."""
    moved = Item.objects.filter(operation=operation)
    last = moved.aggregate(last=Max("number"))["last"]
    with connection.cursor() as cursor:
        cursor.execute(_NEXT, {"operation": operation.pk, "most": at_once})
        rows = cursor.fetchall()
    return _Batch(
        first=0 if last is None else last + 1,
        items=[item for item, *_ in rows],
        poisons_to_lock=[poison for _, poison, has_answers in rows if has_answers],
        is_last=len(rows) < at_once,
    )


def _move(operation: Operation, batch: _Batch) -> None:
    """Move the items of a batch to the tables of this release."""
    sends = operation.verb in SENDS
    is_unfinished = operation.state in UNFINISHED
    # Nothing of a preview is judged, also if the release before has confirmed it after
    # it was begun here: the run will judge it all.
    has_windows = (
        operation.state != OperationState.PREVIEW and operation.judged == batch.first
    )
    will_send = has_windows and sends and is_unfinished
    queue = _queue_to_give_back_to(operation)
    values: dict[str, Any] = {
        "operation": operation.pk,
        "first": batch.first,
        "items": array(batch.items),
        "size": operation.window_size,
        "has_windows": has_windows,
        "will_send": will_send,
        "all_covered": sends or not is_unfinished,
        "target": operation.target_topic_id,
        "queue": queue or "",
        "no_queue": "" if queue is not None else "its topic has no dead-letter queue",
        "ended": operation.finished_at,
    }
    with connection.cursor() as cursor:
        cursor.execute(_MOVE, values)
        (judged,) = cursor.fetchone()
    if judged is not None:
        Operation.objects.filter(pk=operation.pk).update(judged=judged)


def _queue_to_give_back_to(operation: Operation) -> str | None:
    """Name the dead-letter queue to give back to: "" for other verbs, None without."""
    topic = operation.target_topic
    if operation.verb != Verb.GIVE_BACK or topic is None:
        return ""
    return topic.dead_letter_queue or None


def _end(operation: Operation, *, total: int) -> None:
    """Let our workers run an operation whose items are all here."""
    skipped = SkippedItem.objects.filter(operation=operation).count()
    Operation.objects.filter(pk=operation.pk).update(
        layout=LAYOUT,
        total=total,
        will_act=total - skipped,
        trouble="" if operation.trouble == TROUBLE else operation.trouble,
    )
