"""Record the sends of operations: what was handed to a broker, and its answers.

A redrive's row is written after the send. A consumer may answer before that: its answer
leads, by the redrive id, to the hold of the message, and writes the row. The first to
hear of an answer writes it, and `mark` leaves an answered redrive as it is.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connection

from apps.core.arrays import array, bytes_array, text_array
from apps.poison.redrive_ids import RedriveKey, pack, unpack
from apps.poison.services import operation_item_window_counts
from apps.poison.services.locking import lock
from apps.poison.services.operation_item_window_counts import Change
from apps.poison.states import IN_FLIGHT, RedriveOutcome

# A topic, and the digest of a message's body.
Body = tuple[int, bytes]


class Send(NamedTuple):
    """One message that was handed to a broker, and the broker's answer.

    `digest` is set where the message cannot carry the mark of a redrive. `copies` is
    how often it was handed over, this time included.
    """

    poison: int
    operation: int
    item: int
    n: int
    redrive: uuid.UUID
    topic: int
    queue: str
    digest: bytes | None
    copies: int
    claimed_at: datetime
    outcome: RedriveOutcome
    detail: str = ""
    bookmark: str = ""


_KNOWN = """
SELECT poison_id, n, outcome FROM poison_redrive
JOIN unnest(%s::int8[], %s::int4[]) AS one(poison_id, n) USING (poison_id, n)
"""

# A consumer may have answered already: its answer stands.
_RECORD = """
INSERT INTO poison_redrive (id, poison_id, n, operation, item, topic_id, queue, digest,
    outcome, detail, bookmark, epoch, copies, claimed_at, sent_at)
SELECT id, poison_id, n, operation, item, topic_id, queue, digest, outcome, detail,
       bookmark, %(run)s, copies, claimed_at,
       CASE WHEN outcome IN ('sent', 'moved') THEN %(now)s::timestamptz END
FROM unnest(%(ids)s::uuid[], %(poisons)s::int8[], %(ns)s::int4[],
            %(operations)s::int8[], %(items)s::int4[], %(topics)s::int8[],
            %(queues)s::text[], %(digests)s::bytea[], %(outcomes)s::text[],
            %(details)s::text[], %(bookmarks)s::text[], %(copies)s::int4[],
            %(claimed)s::timestamptz[])
     AS one(id, poison_id, n, operation, item, topic_id, queue, digest, outcome, detail,
            bookmark, copies, claimed_at)
ON CONFLICT (poison_id, n) DO UPDATE SET outcome = excluded.outcome,
    detail = excluded.detail, bookmark = excluded.bookmark, epoch = excluded.epoch,
    copies = excluded.copies, sent_at = excluded.sent_at
WHERE poison_redrive.outcome IN ('sending', 'unknown')
"""

# `moved`: sent to another topic on purpose, so no answer will come.
_SETTLE = """
UPDATE poison_poison SET redrives = greatest(redrives, one.n),
    state = CASE one.outcome WHEN 'sent' THEN 'redriven' WHEN 'moved' THEN 'moved'
            ELSE 'open' END,
    sent_at = CASE WHEN one.outcome IN ('sent', 'moved') THEN %(now)s
              ELSE sent_at END,
    moved_to_id = CASE WHEN one.outcome = 'moved' THEN one.topic END
FROM unnest(%(poisons)s::int8[], %(ns)s::int4[], %(outcomes)s::text[],
            %(topics)s::int8[]) AS one(poison, n, outcome, topic)
WHERE poison_poison.id = one.poison AND redrives <= one.n AND one.outcome <> 'unknown'
"""

# Another copy was sent before the answer to an earlier one was known.
_COUNT_COPIES = """
UPDATE poison_redrive SET copies = greatest(poison_redrive.copies, one.copies)
FROM unnest(%(poisons)s::int8[], %(ns)s::int4[], %(copies)s::int4[])
     AS one(poison, n, copies)
WHERE poison_redrive.poison_id = one.poison AND poison_redrive.n = one.n
"""

_COUNT_ONLY = """
UPDATE poison_poison SET redrives = greatest(redrives, one.n)
FROM unnest(%(poisons)s::int8[], %(ns)s::int4[]) AS one(poison, n)
WHERE poison_poison.id = one.poison AND redrives < one.n
"""


def mark(*, sends: Sequence[Send], run: int, now: datetime) -> list[Change]:
    """Record sent messages with the broker's answers; return changed standings.

    The caller counts them, and frees the holds. Call it inside a transaction that the
    run's fence protects.
    """
    lock(send.poison for send in sends)
    keys = [array(send.poison for send in sends), array(send.n for send in sends)]
    with connection.cursor() as cursor:
        cursor.execute(_KNOWN, keys)
        outcomes = {(poison, n): outcome for poison, n, outcome in cursor.fetchall()}
        sending = RedriveOutcome.SENDING.value
        pairs = [(send, outcomes.get((send.poison, send.n), sending)) for send in sends]
        open_sends = [send for send, before in pairs if before in IN_FLIGHT]
        resent = [s for s, before in pairs if before not in IN_FLIGHT and s.copies > 1]
        if resent:
            cursor.execute(_COUNT_COPIES, _columns(resent))
        if not open_sends:
            return []
        values = {**_columns(open_sends), "run": run, "now": now}
        cursor.execute(_RECORD, values)
        cursor.execute(_SETTLE, values)
        unknown = [s for s in open_sends if s.outcome is RedriveOutcome.UNKNOWN]
        if unknown:
            cursor.execute(_COUNT_ONLY, _columns(unknown))
    return [
        Change(send.operation, send.item, before, send.outcome.value)
        for send, before in pairs
        if before in IN_FLIGHT
    ]


def lock_unrecorded(keys: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Lock poisons, and return the (poison, n) whose redrives have no row yet.

    A message that did not reach its broker may still have been answered, if the broker
    was wrong. Call it inside a transaction.
    """
    missing = set(keys)
    if not missing:
        return missing
    lock(poison for poison, _ in missing)
    with connection.cursor() as cursor:
        cursor.execute(_KNOWN, [[p for p, _ in missing], [n for _, n in missing]])
        return missing - {(poison, n) for poison, n, _ in cursor.fetchall()}


# As if it had not been handed over: `n` is free for the next send.
_WITHDRAW = """
WITH withdrawn AS (
    DELETE FROM poison_redrive
    USING poison_poison poison
    JOIN unnest(%s::int8[], %s::int4[]) AS one(poison_id, n)
      ON poison.id = one.poison_id AND poison.redrives = one.n
    WHERE poison_redrive.poison_id = one.poison_id AND poison_redrive.n = one.n
      AND poison_redrive.outcome = 'unknown' AND poison.state = 'redriven'
    RETURNING poison_redrive.poison_id, poison_redrive.n
)
UPDATE poison_poison SET state = 'open', redrives = withdrawn.n - 1,
    sent_at = (SELECT max(sent_at) FROM poison_redrive
               WHERE poison_id = withdrawn.poison_id AND n < withdrawn.n)
FROM withdrawn WHERE poison_poison.id = withdrawn.poison_id
RETURNING withdrawn.poison_id, withdrawn.n
"""


def withdraw_unknown(keys: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Open given-up poisons whose last redrive, (poison, n), reached no broker.

    Deletes these redrives, and returns which; what was answered or changed meanwhile
    stays. Call it inside a transaction, after the poisons are locked.
    """
    unknown = list(keys)
    if not unknown:
        return set()
    with connection.cursor() as cursor:
        cursor.execute(_WITHDRAW, [[p for p, _ in unknown], [n for _, n in unknown]])
        return set(cursor.fetchall())


def _columns(sends: Sequence[Send]) -> dict[str, Any]:
    """Return an operation's sent messages as the arrays that SQL statements take."""
    return {
        "ids": array(send.redrive for send in sends),
        "poisons": array(send.poison for send in sends),
        "ns": array(send.n for send in sends),
        "operations": array(send.operation for send in sends),
        "items": array(send.item for send in sends),
        "topics": array(send.topic for send in sends),
        "queues": text_array(send.queue for send in sends),
        "digests": bytes_array(send.digest for send in sends),
        "outcomes": array(send.outcome for send in sends),
        "details": text_array(send.detail for send in sends),
        "bookmarks": text_array(send.bookmark for send in sends),
        "copies": array(send.copies for send in sends),
        "claimed": array(send.claimed_at for send in sends),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class UnrecordedSend:
    """A held message with a redrive id, of which no row exists yet."""

    redrive: uuid.UUID
    poison: int
    topic: str
    digest: bytes


_UNRECORDED = """
SELECT hold.operation, hold.item, hold.n, hold.poison_id, topic.name, poison.digest
FROM unnest(%s::int8[], %s::int4[], %s::int4[]) AS key(operation, item, n)
JOIN poison_hold hold USING (operation, item, n)
JOIN poison_poison poison ON poison.id = hold.poison_id
JOIN brokers_topic topic ON topic.id = hold.topic_id
WHERE NOT EXISTS (SELECT FROM poison_redrive known
                  WHERE known.poison_id = hold.poison_id AND known.n = hold.n)
"""


def unrecorded_sends(redrives: Iterable[uuid.UUID]) -> dict[uuid.UUID, UnrecordedSend]:
    """Find messages that operations hold by redrive ids, without a redrive row yet."""
    keys = sorted({key for each in redrives if (key := unpack(each)) is not None})
    keys = [key for key in keys if key.operation < 2**63 and max(key[1:]) < 2**31]
    if not keys:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            _UNRECORDED, [list(column) for column in zip(*keys, strict=True)]
        )
        return {
            pack(*key): UnrecordedSend(
                redrive=pack(*key), poison=poison, topic=topic, digest=bytes(digest)
            )
            for *key, poison, topic, digest in cursor.fetchall()
        }


# `was_sending`: the window still counts it among those that are being sent.
_RECORD_EARLY = """
WITH held AS (
    SELECT hold.*, poison.digest AS body_digest, poison.topic_id AS came_from,
           own.run, own.state = 'sending' AND hold.item < own.sending_to AS was_sending
    FROM poison_hold hold
    JOIN unnest(%(operations)s::int8[], %(items)s::int4[], %(ns)s::int4[])
         AS key(operation, item, n) USING (operation, item, n)
    JOIN poison_poison poison ON poison.id = hold.poison_id
    CROSS JOIN LATERAL (
        SELECT run, state, sending_to FROM poison_window
        WHERE operation = hold.operation AND first <= hold.item
        ORDER BY first DESC LIMIT 1) own
), recorded AS (
    INSERT INTO poison_redrive (id, poison_id, n, operation, item, topic_id, queue,
        digest, outcome, detail, bookmark, epoch, copies, claimed_at, sent_at)
    SELECT id, poison_id, n, operation, item, topic_id, queue,
           CASE WHEN queue <> '' OR topic_id = ANY(%(unmarked)s) THEN body_digest END,
           CASE WHEN queue <> '' OR topic_id <> came_from THEN 'moved' ELSE 'sent' END,
           '', '', run, 1, %(now)s, %(now)s
    FROM held JOIN unnest(%(ids)s::uuid[], %(operations)s::int8[], %(items)s::int4[])
         AS key(id, operation, item) USING (operation, item)
    ON CONFLICT (poison_id, n) DO NOTHING
    RETURNING poison_id, n, outcome, topic_id
), settled AS (
    UPDATE poison_poison SET redrives = recorded.n, sent_at = %(now)s,
        state = CASE recorded.outcome WHEN 'moved' THEN 'moved' ELSE 'redriven' END,
        moved_to_id = CASE recorded.outcome WHEN 'moved' THEN recorded.topic_id END
    FROM recorded WHERE poison_poison.id = recorded.poison_id
      AND poison_poison.redrives < recorded.n
)
SELECT held.operation, held.item, held.was_sending, recorded.outcome
FROM recorded JOIN held USING (poison_id, n)
"""


def record_early(
    sends: Collection[UnrecordedSend], *, unmarked: Collection[int] = (), now: datetime
) -> list[Change]:
    """Record as sent operations' redrives that a consumer or broker answered early.

    The ids must be genuine, and the poisons locked; the caller counts the changes that
    it returns. `unmarked` are the topics whose messages cannot carry the mark of a
    redrive.
    """
    if not sends:
        return []
    keys: list[RedriveKey] = [unpack(send.redrive) for send in sends]  # type: ignore[misc]
    values: dict[str, Any] = {
        "ids": array(send.redrive for send in sends),
        "operations": [key.operation for key in keys],
        "items": [key.item for key in keys],
        "ns": [key.n for key in keys],
        "unmarked": list(unmarked),
        "now": now,
    }
    with connection.cursor() as cursor:
        cursor.execute(_RECORD_EARLY, values)
        rows = cursor.fetchall()
    return [
        Change(operation, item, "sending" if was_sending else "", outcome)
        for operation, item, was_sending, outcome in rows
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class UnmarkedSend:
    """A message without a mark that may have been sent; no row of it exists yet."""

    redrive: uuid.UUID
    poison: int
    topic: int
    queue: str
    digest: bytes


_WITHOUT_MARK = """
SELECT hold.operation, hold.item, hold.n, hold.poison_id, hold.topic_id, hold.queue,
       poison.digest
FROM poison_window own
JOIN poison_hold hold ON hold.operation = own.operation
     AND hold.item >= own.first AND hold.item < own.sending_to
JOIN poison_poison poison ON poison.id = hold.poison_id
WHERE own.state = 'sending'
  AND (hold.queue <> '' OR hold.topic_id = ANY(%(unmarked)s))
  AND (hold.topic_id, poison.digest) IN (
      SELECT * FROM unnest(%(topics)s::int8[], %(digests)s::bytea[]))
  AND NOT EXISTS (SELECT FROM poison_redrive known
                  WHERE known.poison_id = hold.poison_id AND known.n = hold.n)
"""


def unmarked_sends(
    bodies: Collection[Body], *, unmarked: Collection[int]
) -> list[UnmarkedSend]:
    """Find messages that operations are sending without a mark, by topic and body.

    `unmarked` are the topics whose messages cannot carry the mark of a redrive.
    """
    if not bodies:
        return []
    values: dict[str, Any] = {
        "topics": [topic for topic, _ in bodies],
        "digests": [digest for _, digest in bodies],
        "unmarked": list(unmarked),
    }
    with connection.cursor() as cursor:
        cursor.execute(_WITHOUT_MARK, values)
        return [
            UnmarkedSend(
                redrive=pack(operation, item, n),
                poison=poison,
                topic=topic,
                queue=queue,
                digest=bytes(digest),
            )
            for operation, item, n, poison, topic, queue, digest in cursor.fetchall()
        ]


_HELD = """
SELECT poison_id, item, n, redrive FROM poison_hold
WHERE operation = %s AND item >= %s AND item < %s
"""

# Whatever has a row of an earlier run was handed over once more, answered or not.
_RECORD_UNKNOWN = """
INSERT INTO poison_redrive (id, poison_id, n, operation, item, topic_id, queue, digest,
    outcome, detail, bookmark, epoch, copies, claimed_at)
SELECT one.id, poison_id, n, operation, item, hold.topic_id, queue,
       CASE WHEN queue <> '' OR hold.topic_id = ANY(%(unmarked)s)
            THEN poison.digest END,
       'unknown', '', '', %(run)s, 1, %(now)s
FROM poison_hold hold JOIN poison_poison poison ON poison.id = hold.poison_id
JOIN unnest(%(ids)s::uuid[], %(items)s::int4[]) AS one(id, item) USING (item)
WHERE operation = %(operation)s
ON CONFLICT (poison_id, n) DO UPDATE
SET copies = poison_redrive.copies + 1, epoch = excluded.epoch
WHERE poison_redrive.epoch < excluded.epoch
RETURNING item, copies = 1
"""


def record_unknown(
    *,
    operation: int,
    first: int,
    sending_to: int,
    unmarked: Collection[int],
    run: int,
    now: datetime,
) -> None:
    """Record as unknown the messages that a dead run may have sent.

    These are the held items from `first` on, before `sending_to`; `run` is the dead
    one. What was answered before stays so, and counts one copy more. Call it inside a
    transaction that the fence of the present run protects.
    """
    with connection.cursor() as cursor:
        cursor.execute(_HELD, [operation, first, sending_to])
        rows = cursor.fetchall()
        lock(poison for poison, *_ in rows)
        ids = {
            item: redrive or pack(operation, item, n) for _, item, n, redrive in rows
        }
        values: dict[str, Any] = {
            "operation": operation,
            "ids": array(ids.values()),
            "items": list(ids),
            "unmarked": list(unmarked),
            "run": run,
            "now": now,
        }
        cursor.execute(_RECORD_UNKNOWN, values)
        unknown = {item for item, is_new in cursor.fetchall() if is_new}
        keys = [(poison, n) for poison, item, n, _ in rows if item in unknown]
        cursor.execute(
            _COUNT_ONLY,
            {"poisons": [poison for poison, _ in keys], "ns": [n for _, n in keys]},
        )
    operation_item_window_counts.count(
        Change(operation, item, RedriveOutcome.SENDING.value, "unknown")
        for item in unknown
    )


_GIVE_UP_UNKNOWN = """
UPDATE poison_poison SET state = 'redriven', sent_at = %(now)s
FROM poison_hold hold JOIN poison_redrive sent
  ON sent.poison_id = hold.poison_id AND sent.n = hold.n AND sent.outcome = 'unknown'
WHERE hold.operation = %(operation)s AND hold.item >= %(first)s AND hold.item < %(end)s
  AND poison_poison.id = hold.poison_id AND poison_poison.redrives = hold.n
  AND poison_poison.state IN ('open', 'redriven')
"""

_FREE_RANGE = """
DELETE FROM poison_hold WHERE operation = %(operation)s
   AND item >= %(first)s AND item < %(end)s
"""


def give_up(*, operation: int, first: int, end: int, now: datetime) -> None:
    """Free the held messages of these items: none will be sent any more.

    A message that may have been sent counts as sent now, and falls silent if no answer
    comes; all others are open again. Call it inside a transaction.
    """
    values: dict[str, Any] = {
        "operation": operation,
        "first": first,
        "end": end,
        "now": now,
    }
    with connection.cursor() as cursor:
        cursor.execute(_HELD, [operation, first, end])
        lock(poison for poison, *_ in cursor.fetchall())
        cursor.execute(_GIVE_UP_UNKNOWN, values)
        cursor.execute(_FREE_RANGE, values)


def free(*, operation: int, items: Collection[int]) -> None:
    """Delete the holds of an operation's items. Call it inside a transaction."""
    if not items:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM poison_hold WHERE operation = %s AND item = ANY(%s::int4[])",
            [operation, array(items)],
        )
