"""The skip list as consumers are told of it: all of it, and what came after."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any, Self

from django.db import connection
from django.db.backends.utils import CursorWrapper

from apps.core.ids import unraw
from apps.poison.matching import Matcher
from apps.poison.models import Skip
from poisonguard.contract import MatcherKind

AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Told:
    """A skip as consumers are told of it; `because` says why it ended, if it did.

    `revision` is that of its last change, which may be its end. By `message_id` and
    `seq` a consumer knows again what it handled; only of automatic skips they are read.
    """

    id: int
    topic: str
    kind: str
    value: bytes
    consumer_group: str | None
    handler_version: str | None
    redrive: uuid.UUID | None
    poison: int | None
    reason: str
    by: str
    at: datetime
    expires_at: datetime | None
    is_suspected: bool
    message_id: str | None
    seq: int | None
    revision: int
    because: str

    @classmethod
    def of(cls, skip: Skip) -> Self:
        return cls(
            id=skip.pk,
            topic=skip.topic.name,
            kind=skip.kind,
            value=bytes(skip.value),
            consumer_group=skip.consumer_group,
            handler_version=skip.handler_version,
            redrive=skip.redrive,
            poison=skip.poison_id,
            reason=skip.reason,
            by=skip.by,
            at=skip.at,
            expires_at=skip.expires_at,
            is_suspected=skip.is_suspected,
            message_id=None,
            seq=skip.seq,
            revision=skip.removed_revision or skip.revision,
            because=skip.because,
        )

    @property
    def matcher(self) -> Matcher:
        return Matcher(kind=MatcherKind(self.kind), value=bytes(self.value))

    def concerns(self, consumer_group: str | None) -> bool:
        """Tell whether this group is to hear of it; None hears of all."""
        return consumer_group is None or self.consumer_group in {None, consumer_group}


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """Where the list of a topic stands; changes up to `floor` are forgotten."""

    epoch: str
    revision: int
    floor: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """All that is active at one revision, or a little of what came after it."""

    epoch: str
    revision: int
    skips: tuple[Told, ...]

    @property
    def in_force(self) -> Iterator[Told]:
        return (each for each in self.skips if not each.is_suspected)

    @property
    def suspected(self) -> Iterator[Told]:
        return (each for each in self.skips if each.is_suspected)


class Rows:
    """The rows of a snapshot: first those in force, then those suspected."""

    def __init__(self, head: Head, cursor: CursorWrapper) -> None:
        self.head = head
        self._rows = chain.from_iterable(iter(partial(cursor.fetchmany, AT_ONCE), []))
        self._next: tuple[Any, ...] | None = None

    def in_force(self) -> Iterator[tuple[Any, ...]]:
        """Give the values of `skip_lines.COLUMNS` of each."""
        for row in self._rows:
            if row[-1]:
                self._next = row
                return
            yield (*row[:2], _wire_value(row[1], row[2]), *row[3:-3])

    def suspected(self) -> Iterator[tuple[Any, ...]]:
        """Give the values of `skip_lines.SUSPECT_COLUMNS` of each, after the others."""
        first = [] if self._next is None else [self._next]
        for row in chain(first, self._rows):
            yield (*row[:2], _wire_value(row[1], row[2]), *row[3:-1])


def _wire_value(kind: str, value: bytes) -> object:
    if kind == MatcherKind.RULE:
        return Matcher(kind=MatcherKind.RULE, value=bytes(value)).wire_value
    return unraw(value)


# A copy of the data under another life of Postgres is another store, and its revisions
# are others: a dump that is put back writes the row anew (xmin), another database or
# cluster has other numbers, and whoever goes back in time goes on in another timeline.
_EPOCH = """
SELECT substr(encode(sha256(convert_to(concat_ws('/', store.value, store.xmin,
           current.oid, control.system_identifier,
           substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)), 'UTF8')), 'hex'),
           1, 16)
FROM poison_store_epoch store, pg_control_system() control, pg_database current
WHERE current.datname = current_database()
"""

FOUND_EPOCH = """
INSERT INTO poison_store_epoch (id, value) VALUES (1, gen_random_uuid())
ON CONFLICT (id) DO NOTHING
"""

# A topic that nobody has told of yet has an empty list, at revision 0.
HEADS = f"""
SELECT wanted.name, store.epoch, coalesce(list.revision, 0), coalesce(list.floor, 0)
FROM unnest(%(topics)s::text[]) AS wanted(name)
CROSS JOIN ({_EPOCH}) AS store(epoch)
LEFT JOIN brokers_topic topic ON topic.name = wanted.name
LEFT JOIN poison_skip_list list ON list.topic_id = topic.id
"""  # noqa: S608 - all of it is ours

_TOLD = """
skip.id, topic.name, skip.kind, skip.value, skip.consumer_group, skip.handler_version,
skip.redrive, skip.poison_id, skip.reason, skip.by, skip.at, skip.expires_at,
skip.is_suspected
"""

_AUTOMATIC = """
(SELECT poison.message_id FROM poison_poison poison
 WHERE skip.is_automatic AND poison.id = skip.poison_id), skip.seq
"""
_SUSPECTED = """
(SELECT poison.message_id FROM poison_poison poison
 WHERE skip.is_suspected AND poison.id = skip.poison_id), skip.seq
"""

# Each skip as it is now, and no more than once: what it was between is of no use.
CHANGES = f"""
(SELECT {_TOLD}, {_AUTOMATIC}, skip.revision AS changed, skip.because
 FROM poison_skip skip JOIN brokers_topic topic ON topic.id = skip.topic_id
 WHERE topic.name = %(topic)s AND skip.removed_revision IS NULL
   AND skip.revision > %(after)s
 ORDER BY skip.revision LIMIT %(limit)s)
UNION ALL
(SELECT {_TOLD}, {_AUTOMATIC}, skip.removed_revision AS changed, skip.because
 FROM poison_skip skip JOIN brokers_topic topic ON topic.id = skip.topic_id
 WHERE topic.name = %(topic)s AND skip.removed_revision > %(after)s
 ORDER BY skip.removed_revision LIMIT %(limit)s)
ORDER BY changed LIMIT %(limit)s
"""  # noqa: S608 - all of it is ours

_ACTIVE = f"""
SELECT {_TOLD}, {_SUSPECTED}, skip.revision, skip.because
FROM poison_skip skip JOIN brokers_topic topic ON topic.id = skip.topic_id
WHERE topic.name = %(topic)s AND skip.removed_revision IS NULL
  AND (%(group)s::text IS NULL OR skip.consumer_group IS NULL
       OR skip.consumer_group = %(group)s)
ORDER BY skip.id
"""  # noqa: S608 - all of it is ours


# As consumers read it in columns: times are microseconds since 1970.
_COLUMNS = """
skip.id, skip.kind, skip.value, skip.consumer_group, skip.handler_version,
skip.redrive::text, (extract(epoch FROM skip.expires_at) * 1000000)::int8,
skip.reason, skip.by, (extract(epoch FROM skip.at) * 1000000)::int8, skip.poison_id
"""

_IN_COLUMNS = f"""
SELECT {_COLUMNS}, {_SUSPECTED}, skip.is_suspected
FROM poison_skip skip JOIN brokers_topic topic ON topic.id = skip.topic_id
WHERE topic.name = %(topic)s AND skip.removed_revision IS NULL
  AND (%(group)s::text IS NULL OR skip.consumer_group IS NULL
       OR skip.consumer_group = %(group)s)
ORDER BY skip.is_suspected, skip.id
"""  # noqa: S608 - all of it is ours


def head(*, topic: str) -> Head:
    """Tell where the list of a topic stands, heard of or not."""
    with connection.cursor() as cursor:
        cursor.execute(HEADS, {"topics": [topic]})
        row = cursor.fetchone()
        if row is None:
            cursor.execute(FOUND_EPOCH)
            cursor.execute(HEADS, {"topics": [topic]})
            row = cursor.fetchone()
    _, epoch, revision, floor = row
    return Head(epoch=epoch, revision=revision, floor=floor)


def snapshot(*, topic: str, consumer_group: str | None) -> Snapshot:
    """Give all that is active, with the revision after which to ask for changes."""
    # The revision first: what commits in between is in the skips, and told again.
    at = head(topic=topic)
    told = _told(_ACTIVE, {"topic": topic, "group": consumer_group})
    return Snapshot(epoch=at.epoch, revision=at.revision, skips=tuple(told))


@contextmanager
def rows(*, topic: str, consumer_group: str | None) -> Iterator[Rows]:
    """Read what `snapshot` gives, row by row, with no object for each."""
    # The revision first, as in `snapshot`.
    at = head(topic=topic)
    with connection.cursor() as cursor:
        cursor.execute(_IN_COLUMNS, {"topic": topic, "group": consumer_group})
        yield Rows(at, cursor)


def changes_after(*, topic: str, revision: int, limit: int = AT_ONCE) -> list[Told]:
    """Give what changed after a revision, in order, each skip as it is now."""
    return _told(CHANGES, {"topic": topic, "after": revision, "limit": limit})


def _told(statement: str, values: dict[str, Any]) -> list[Told]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return [Told(*row) for row in cursor.fetchall()]
