"""Store what consumers settle; Postgres merges it in any order, any number of times."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from django.db import connection, transaction

from apps.bookmarks.consumer_request_parsing import MOST_RUNS, PositionUpdate
from apps.bookmarks.runs_of_settled_positions import NOWHERE, as_text
from apps.core.batch_requests import Batch
from apps.team.rights import Principal

# From this share on, answers say how full the position is.
PRESSURE = 0.75
# The least that Postgres needs for each run: its two ends, of 8 bytes.
RUN_BYTES = 16

# Client name, sub id, topic and publisher name a mark; the last is the epoch.
Key = tuple[str, str, str, str, int]


class SettleStatus(StrEnum):
    """Fenced: another client opened the position, or a person moved it: reopen it."""

    OK = "ok"
    FENCED = "fenced"
    REJECTED = "rejected"


@dataclass(frozen=True, kw_only=True, slots=True)
class SettleAnswer:
    """The result of one update.

    `pressure` is how full its position is, set from three quarters on. At 1 it takes no
    further hole.
    """

    status: SettleStatus
    detail: str | None = None
    pointer: str | None = None
    pressure: float | None = None


OK = SettleAnswer(status=SettleStatus.OK)
FENCED = SettleAnswer(
    status=SettleStatus.FENCED,
    detail="this position was opened or moved since: open it again, and resume there",
)
UNKNOWN = SettleAnswer(
    status=SettleStatus.REJECTED,
    detail="there is no such position: open it first, naming sub_id and topic",
    pointer="/topic",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Remark:
    """What `_MERGE` returns of an update that needs an answer other than OK.

    `position` is None if no such position exists. `is_first` says that the position
    has no mark for the publisher yet. `runs` counts the runs that the mark would have
    above the watermark: too many were not written. It is None if no mark has the epoch
    of the update, so that its holder is fenced.
    """

    position: int | None
    is_first: bool
    runs: int | None


def settle(
    *, members: Sequence[object], principal: Principal, now: datetime
) -> list[SettleAnswer]:
    """Store positions' settled, received and persisted numbers, one answer each.

    Merging is a union and a maximum: idempotent, and independent of order. Invalid
    members are rejected one by one.
    """
    batch = Batch(members, PositionUpdate.parse, _rejection)
    topics = {update.topic for update in batch.unanswered}
    hidden = {topic for topic in topics if not principal.sees(topic)}
    if hidden:
        batch.answer(lambda update: _refuse_hidden(update.topic, hidden))
    updates = batch.unanswered
    return batch.in_order(_settle(updates, now=now) if updates else [])


def _rejection(pointer: str, detail: str) -> SettleAnswer:
    """Make the answer that rejects a position's update: where it is wrong, and why."""
    return SettleAnswer(status=SettleStatus.REJECTED, detail=detail, pointer=pointer)


def _refuse_hidden(topic: str, hidden: Collection[str]) -> SettleAnswer | None:
    """Reject a position's update if the principal may not use the topic, else None."""
    if topic not in hidden:
        return None
    return _rejection(
        "/topic", f"this key may not use the topic {topic}; give it the topic"
    )


@transaction.atomic
def _settle(updates: Sequence[PositionUpdate], *, now: datetime) -> list[SettleAnswer]:
    """Settle all updates of positions by one statement, locking marks by id.

    If the statement finds positions without a mark for the publisher, roll it back,
    since positions are always locked before marks; insert the marks and settle again.
    """
    keys = [_mark_key(update) for update in updates]
    merged: dict[Key, PositionUpdate] = {}
    for key, update in zip(keys, updates, strict=True):
        merged[key] = _merge_updates(merged[key], update) if key in merged else update
    before_locks = transaction.savepoint()
    remarks = _merge(merged, now=now)
    first = {key: remark for key, remark in remarks.items() if remark.is_first}
    if first:
        transaction.savepoint_rollback(before_locks)
        _insert_marks(first)
        remarks = _merge(merged, now=now)
    return [_answer_of_remark(remarks.get(key)) for key in keys]


def _mark_key(update: PositionUpdate) -> Key:
    """Return the key of an update's mark: client, sub id, topic, publisher, epoch."""
    return update[:5]


def _merge_updates(first: PositionUpdate, second: PositionUpdate) -> PositionUpdate:
    """Merge two updates of one mark: a statement updates a row only once."""
    ahead = max(first, second, key=_highest)
    return first._replace(
        settled=first.settled + second.settled,
        received=_greater(first.received, second.received),
        persisted=_greater(first.persisted, second.persisted),
        bookmark=ahead.bookmark,
    )


def _highest(update: PositionUpdate) -> int:
    """Return the highest settled number of a position's update, or `NOWHERE`."""
    return max((high for _, high in update.settled), default=NOWHERE)


def _greater(first: int | None, second: int | None) -> int | None:
    """Return the greater of two numbers of a position's updates; each may be None."""
    return max((n for n in (first, second) if n is not None), default=None)


def _answer_of_remark(remark: _Remark | None) -> SettleAnswer:
    """Turn the statement's remark on a position's update into the answer."""
    if remark is None:
        return OK
    if remark.position is None:
        return UNKNOWN
    if remark.runs is None:
        return FENCED
    if remark.runs <= MOST_RUNS:
        return replace(OK, pressure=round(remark.runs / MOST_RUNS, 2))
    return SettleAnswer(
        status=SettleStatus.REJECTED,
        detail=f"it would keep {remark.runs} runs, and at most {MOST_RUNS} are kept: "
        "settle what lies between them, or receive no more until you have",
        pointer="/settled",
        pressure=1.0,
    )


# MATERIALIZED: find the positions before the marks. Postgres underestimates a table
# that it never analysed, and would scan all marks for each update.
# The complement of what is settled begins after the watermark. Runs are counted above
# the watermark, and only if there may be many. All is computed from the locked rows,
# which are current.
_MERGE = """
WITH found AS MATERIALIZED (
    SELECT new.ord, new.publisher, new.epoch, new.settled, new.received,
           new.persisted, new.bookmark, position.id AS position_id
    FROM unnest(%(client_name)s::text[], %(sub_id)s::text[], %(topic)s::text[],
                %(publisher)s::text[], %(epoch)s::int8[],
                %(settled)s::int8multirange[], %(received)s::int8[],
                %(persisted)s::int8[], %(bookmark)s::text[])
         WITH ORDINALITY AS new(client_name, sub_id, topic, publisher, epoch, settled,
                                received, persisted, bookmark, ord)
    LEFT JOIN brokers_topic topic ON topic.name = new.topic
    LEFT JOIN bookmarks_position position
      ON position.topic_id = topic.id AND position.source = 'sdk'
     AND position.consumer_group = '' AND position.client_name = new.client_name
     AND position.sub_id = new.sub_id
), judged AS MATERIALIZED (
    SELECT locked.*, lower('{[0,)}'::int8multirange - whole) - 1 AS processed,
           CASE WHEN pg_column_size(whole) < %(long)s THEN 0
           ELSE (SELECT count(*) FROM unnest(whole) AS run WHERE lower(run) > 0)
           END AS runs
    FROM (
        SELECT mark.id, mark.settled + found.settled AS whole,
               upper(found.settled) - 1 AS highest, found.received, found.persisted,
               found.bookmark, found.ord
        FROM found JOIN bookmarks_mark mark
          ON mark.position_id = found.position_id AND mark.publisher = found.publisher
         AND mark.epoch = found.epoch
        ORDER BY mark.id FOR NO KEY UPDATE OF mark
    ) locked
), written AS (
    UPDATE bookmarks_mark mark
    SET settled = judged.whole, processed = judged.processed,
        received = greatest(mark.received, judged.received, judged.highest),
        persisted = greatest(mark.persisted, judged.persisted),
        bookmark = CASE WHEN judged.processed = judged.highest AND judged.bookmark <> ''
                   THEN judged.bookmark ELSE mark.bookmark END,
        settled_at = %(now)s
    FROM judged WHERE mark.id = judged.id AND judged.runs <= %(most)s
)
SELECT found.ord, found.position_id,
       found.position_id IS NOT NULL AND NOT EXISTS (
           SELECT FROM bookmarks_mark mark
           WHERE mark.position_id = found.position_id
             AND mark.publisher = found.publisher),
       judged.runs
FROM found LEFT JOIN judged ON judged.ord = found.ord
WHERE judged.runs IS NULL OR judged.runs >= %(pressing)s
"""


def _merge(
    updates: Mapping[Key, PositionUpdate], *, now: datetime
) -> dict[Key, _Remark]:
    """Merge updates into positions' marks in Postgres; return each one's remark.

    A mark that would get too many runs is not changed.
    """
    keys = list(updates)
    pressing = math.ceil(PRESSURE * MOST_RUNS)
    with connection.cursor() as cursor:
        cursor.execute(
            _MERGE,
            {
                **_arrays_by_field(updates.values()),
                "now": now,
                "most": MOST_RUNS,
                "pressing": pressing,
                "long": pressing * RUN_BYTES,
            },
        )
        return {
            keys[ordinal - 1]: _Remark(position=position, is_first=is_first, runs=runs)
            for ordinal, position, is_first, runs in cursor.fetchall()
        }


def _arrays_by_field(updates: Collection[PositionUpdate]) -> dict[str, str]:
    """Turn updates of positions into an array of Postgres for each field."""
    columns = dict(zip(PositionUpdate._fields, zip(*updates, strict=True), strict=True))
    columns["settled"] = tuple(map(as_text, columns["settled"]))
    return {name: _as_array(values) for name, values in columns.items()}


def _as_array(values: tuple[str | int | None, ...]) -> str:
    """Write values of positions' updates as an array of Postgres.

    That is a JSON list, but for the brackets. Parsed texts have no control characters,
    which JSON escapes differently.
    """
    # With psycopg's own lists, a large batch took twice as long.
    return "{" + json.dumps(values, ensure_ascii=False)[1:-1] + "}"


# Only for the holder of the position: a fenced reader inserts no mark.
_MAKE = """
WITH locked AS MATERIALIZED (
    SELECT id, epoch FROM bookmarks_position WHERE id = ANY(%(positions)s)
    ORDER BY id FOR SHARE
)
INSERT INTO bookmarks_mark (position_id, publisher, epoch, processed, bookmark, settled)
SELECT DISTINCT locked.id, new.publisher, locked.epoch, -1, '', '{}'::int8multirange
FROM unnest(%(positions)s::int8[], %(publishers)s::text[], %(epochs)s::int8[])
     AS new(position, publisher, epoch)
JOIN locked ON locked.id = new.position AND locked.epoch = new.epoch
ORDER BY 1, 2
ON CONFLICT (position_id, publisher) DO NOTHING
"""


def _insert_marks(first: Mapping[Key, _Remark]) -> None:
    """Insert the marks of publishers whose first update of a position just came."""
    values: dict[str, list[int | str | None]] = {
        "positions": [remark.position for remark in first.values()],
        "publishers": [publisher for _, _, _, publisher, _ in first],
        "epochs": [epoch for _, _, _, _, epoch in first],
    }
    with connection.cursor() as cursor:
        cursor.execute(_MAKE, values)
