"""Keep what consumers settle: merged by Postgres, whatever comes when and how often."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from django.db import connection, transaction

from apps.bookmarks.runs import NOWHERE, as_text
from apps.bookmarks.wire import MOST_RUNS, Update
from apps.core.errors import Invalid
from apps.team.rights import Principal

# From here on a consumer is told how near its position is to holding no more.
PRESSURE = 0.75
# What Postgres takes at least for each run: its two ends, of 8 bytes.
RUN_BYTES = 16

# Client name, sub id, topic and publisher: the name of a mark. And the epoch told.
Key = tuple[str, str, str, str, int]


class Status(StrEnum):
    """Fenced: another has opened the position, or a person moved it; open it anew."""

    OK = "ok"
    FENCED = "fenced"
    REJECTED = "rejected"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What became of one update.

    `pressure` is how full its position is, told from three quarters on; at 1 it takes
    no further hole.
    """

    status: Status
    detail: str | None = None
    pointer: str | None = None
    pressure: float | None = None


OK = Answer(status=Status.OK)
FENCED = Answer(
    status=Status.FENCED,
    detail="this position was opened or moved since: open it again, and resume there",
)
UNKNOWN = Answer(
    status=Status.REJECTED,
    detail="there is no such position: open it first, naming sub_id and topic",
    pointer="/topic",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Odd:
    """What there is to say of an update that was not simply written.

    `position` is None where there is none, and `is_first` is the first word of its
    publisher. `runs` is how many its mark would keep above the watermark; None where
    that is not for this holder to say.
    """

    position: int | None
    is_first: bool
    runs: int | None


def settle(
    *, members: Sequence[object], principal: Principal, now: datetime
) -> list[Answer]:
    """Write what is settled, received and persisted; answer each member in order.

    Merging is a union and a maximum, so nothing goes back, twice is as good as once,
    and no order matters. One bad member never sinks the rest.
    """
    answers, updates = _parsed(members)
    for place, refusal in _out_of_scope(updates, principal).items():
        answers[place] = refusal
        del updates[place]
    if updates:
        answers.update(_settle(updates, now=now))
    return [answers[place] for place in range(len(members))]


def _parsed(
    members: Sequence[object],
) -> tuple[dict[int, Answer], dict[int, Update]]:
    answers: dict[int, Answer] = {}
    updates: dict[int, Update] = {}
    for place, member in enumerate(members):
        try:
            updates[place] = Update.parse(member)
        except Invalid as wrong:
            answers[place] = Answer(
                status=Status.REJECTED,
                detail=str(wrong),
                pointer=f"/{wrong.field}" if wrong.field else "",
            )
    return answers, updates


def _out_of_scope(
    updates: Mapping[int, Update], principal: Principal
) -> dict[int, Answer]:
    topics = {update.topic for update in updates.values()}
    hidden = {topic for topic in topics if not principal.sees(topic)}
    return {
        place: Answer(
            status=Status.REJECTED,
            detail=f"this key may not use the topic {update.topic}; give it the topic",
            pointer="/topic",
        )
        for place, update in updates.items()
        if update.topic in hidden
    }


@transaction.atomic
def _settle(updates: Mapping[int, Update], *, now: datetime) -> dict[int, Answer]:
    """Settle by one statement for all updates, which locks the marks in id order.

    It also finds each publisher's first word. Then it is undone, for a position is
    always locked before any mark; their marks are made, and all is settled.
    """
    keys = {place: _key(update) for place, update in updates.items()}
    told: dict[Key, Update] = {}
    for place, key in keys.items():
        update = updates[place]
        told[key] = _united(told[key], update) if key in told else update
    none_locked = transaction.savepoint()
    odd = _merge(told, now=now)
    first = {key: each for key, each in odd.items() if each.is_first}
    if first:
        transaction.savepoint_rollback(none_locked)
        _make_marks(first)
        odd = _merge(told, now=now)
    return {place: _answer(odd.get(key)) for place, key in keys.items()}


def _key(update: Update) -> Key:
    return update[:5]


def _united(first: Update, second: Update) -> Update:
    """Make one of two updates of a mark: a row is updated once by a statement."""
    ahead = max(first, second, key=_highest)
    return first._replace(
        settled=first.settled + second.settled,
        received=_greater(first.received, second.received),
        persisted=_greater(first.persisted, second.persisted),
        bookmark=ahead.bookmark,
    )


def _highest(update: Update) -> int:
    return max((high for _, high in update.settled), default=NOWHERE)


def _greater(first: int | None, second: int | None) -> int | None:
    return max((n for n in (first, second) if n is not None), default=None)


def _answer(odd: _Odd | None) -> Answer:
    if odd is None:
        return OK
    if odd.position is None:
        return UNKNOWN
    if odd.runs is None:
        return FENCED
    if odd.runs <= MOST_RUNS:
        return replace(OK, pressure=round(odd.runs / MOST_RUNS, 2))
    return Answer(
        status=Status.REJECTED,
        detail=f"it would keep {odd.runs} runs, and at most {MOST_RUNS} are kept: "
        "settle what lies between them, or receive no more until you have",
        pointer="/settled",
        pressure=1.0,
    )


# Positions are found before marks are looked at: Postgres, which thinks little of a
# table that it never analysed, would look through all marks for each update.
# The complement of what is settled begins behind the watermark. Runs are counted above
# the watermark, and only where they may be many. What was locked is the newest there
# is, so all is reckoned from it.
_MERGE = """
WITH found AS MATERIALIZED (
    SELECT told.ord, told.publisher, told.epoch, told.settled, told.received,
           told.persisted, told.bookmark, position.id AS position_id
    FROM unnest(%(client_name)s::text[], %(sub_id)s::text[], %(topic)s::text[],
                %(publisher)s::text[], %(epoch)s::int8[],
                %(settled)s::int8multirange[], %(received)s::int8[],
                %(persisted)s::int8[], %(bookmark)s::text[])
         WITH ORDINALITY AS told(client_name, sub_id, topic, publisher, epoch, settled,
                                 received, persisted, bookmark, ord)
    LEFT JOIN brokers_topic topic ON topic.name = told.topic
    LEFT JOIN bookmarks_position position
      ON position.topic_id = topic.id AND position.source = 'sdk'
     AND position.consumer_group = '' AND position.client_name = told.client_name
     AND position.sub_id = told.sub_id
), judged AS MATERIALIZED (
    SELECT held.*, lower('{[0,)}'::int8multirange - whole) - 1 AS processed,
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
    ) held
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


def _merge(told: Mapping[Key, Update], *, now: datetime) -> dict[Key, _Odd]:
    """Merge what is told of marks under their epochs; tell what else there is to say.

    A mark that would have too many runs is left as it is.
    """
    keys = list(told)
    pressing = math.ceil(PRESSURE * MOST_RUNS)
    with connection.cursor() as cursor:
        cursor.execute(
            _MERGE,
            {
                **_columns(told.values()),
                "now": now,
                "most": MOST_RUNS,
                "pressing": pressing,
                "long": pressing * RUN_BYTES,
            },
        )
        return {
            keys[place - 1]: _Odd(position=position, is_first=is_first, runs=runs)
            for place, position, is_first, runs in cursor.fetchall()
        }


def _columns(updates: Collection[Update]) -> dict[str, str]:
    columns = dict(zip(Update._fields, zip(*updates, strict=True), strict=True))
    columns["settled"] = tuple(map(as_text, columns["settled"]))
    return {name: _array(values) for name, values in columns.items()}


def _array(values: tuple[str | int | None, ...]) -> str:
    """Write an array as Postgres reads it: a JSON list, but for the brackets.

    No text that was parsed holds a control character, which JSON alone would escape.
    """
    # Half of the time of a large batch went by while psycopg wrote its lists.
    return "{" + json.dumps(values, ensure_ascii=False)[1:-1] + "}"


# Only for who holds the position: a fenced reader leaves no mark behind.
_MAKE = """
WITH locked AS MATERIALIZED (
    SELECT id, epoch FROM bookmarks_position WHERE id = ANY(%(positions)s)
    ORDER BY id FOR SHARE
)
INSERT INTO bookmarks_mark (position_id, publisher, epoch, processed, bookmark, settled)
SELECT DISTINCT locked.id, told.publisher, locked.epoch, -1, '', '{}'::int8multirange
FROM unnest(%(positions)s::int8[], %(publishers)s::text[], %(epochs)s::int8[])
     AS told(position, publisher, epoch)
JOIN locked ON locked.id = told.position AND locked.epoch = told.epoch
ORDER BY 1, 2
ON CONFLICT (position_id, publisher) DO NOTHING
"""


def _make_marks(first: Mapping[Key, _Odd]) -> None:
    values: dict[str, list[int | str | None]] = {
        "positions": [each.position for each in first.values()],
        "publishers": [publisher for _, _, _, publisher, _ in first],
        "epochs": [epoch for _, _, _, _, epoch in first],
    }
    with connection.cursor() as cursor:
        cursor.execute(_MAKE, values)
