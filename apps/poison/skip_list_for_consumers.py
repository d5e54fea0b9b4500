"""Read the skip list for consumers: a snapshot, and the changes after it."""

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

from apps.core.hashed_ids import unraw
from apps.poison.models import Skip
from apps.poison.skip_matching import Matcher
from poisonguard.contract import MatcherKind

BATCH_SIZE = 1_000


@dataclass(frozen=True, slots=True)
class ListedSkip:
    """A skip as consumers read it; `because` says why it ended, if it did.

    `revision` is that of its last change, which may be its end. A consumer recognizes
    what it handled by `message_id` and `seq`, which only automatic skips have.
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
        """Build a `ListedSkip`, as the API lists skips, from a stored skip.

        It is without the message id of its poison.
        """
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
        """Return the matcher of the skip: its kind and value."""
        return Matcher(kind=MatcherKind(self.kind), value=bytes(self.value))

    def concerns(self, consumer_group: str | None) -> bool:
        """Tell whether the skip is for this group; None stands for every group."""
        return consumer_group is None or self.consumer_group in {None, consumer_group}


@dataclass(frozen=True, kw_only=True, slots=True)
class SkipListHead:
    """The newest revision of a topic's list; changes up to `floor` are deleted."""

    epoch: str
    revision: int
    floor: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SkipListSnapshot:
    """All skips that are active at one revision, and perhaps some later changes."""

    epoch: str
    revision: int
    skips: tuple[ListedSkip, ...]

    @property
    def in_force(self) -> Iterator[ListedSkip]:
        """Return those of a read skip list that are in force, not mere suspicions."""
        return (skip for skip in self.skips if not skip.is_suspected)

    @property
    def suspected(self) -> Iterator[ListedSkip]:
        """Return those of a skip list read from Postgres that are suspicions still."""
        return (skip for skip in self.skips if skip.is_suspected)


class SnapshotRows:
    """The rows of a snapshot: first those in force, then those suspected."""

    def __init__(self, head: SkipListHead, cursor: CursorWrapper) -> None:
        self.head = head
        self._rows = chain.from_iterable(
            iter(partial(cursor.fetchmany, BATCH_SIZE), [])
        )
        self._next: tuple[Any, ...] | None = None

    def in_force(self) -> Iterator[tuple[Any, ...]]:
        """Yield the columns of a skip list's rows in force, as the API sends them.

        They come from a snapshot that was read. Call it before `suspected`.
        """
        for row in self._rows:
            if row[-1]:
                self._next = row
                return
            yield (*row[:2], _wire_value(row[1], row[2]), *row[3:-3])

    def suspected(self) -> Iterator[tuple[Any, ...]]:
        """Yield the `SUSPECT_COLUMNS` of each suspected skip, after those in force.

        Call it last.
        """
        first = [] if self._next is None else [self._next]
        for row in chain(first, self._rows):
            yield (*row[:2], _wire_value(row[1], row[2]), *row[3:-1])


def _wire_value(kind: str, value: bytes) -> object:
    """Return the value of a skip's matcher as the API shows it."""
    if kind == MatcherKind.RULE:
        return Matcher(kind=MatcherKind.RULE, value=bytes(value)).wire_value
    return unraw(value)


# The epoch differs for each copy of the data, because its revisions differ: a restored
# dump inserts the row again (xmin), another database or cluster has other ids, and
# point-in-time recovery starts another timeline.
_EPOCH = """
SELECT substr(encode(sha256(convert_to(concat_ws('/', store.value, store.xmin,
           current.oid, control.system_identifier,
           substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)), 'UTF8')), 'hex'),
           1, 16)
FROM poison_store_epoch store, pg_control_system() control, pg_database current
WHERE current.datname = current_database()
"""

INSERT_EPOCH = """
INSERT INTO poison_store_epoch (id, value) VALUES (1, gen_random_uuid())
ON CONFLICT (id) DO NOTHING
"""

# An unknown topic has an empty list, at revision 0.
HEADS = f"""
SELECT topics.name, store.epoch, coalesce(list.revision, 0), coalesce(list.floor, 0)
FROM unnest(%(topics)s::text[]) AS topics(name)
CROSS JOIN ({_EPOCH}) AS store(epoch)
LEFT JOIN brokers_topic topic ON topic.name = topics.name
LEFT JOIN poison_skip_list list ON list.topic_id = topic.id
"""  # noqa: S608 - all of it is ours

_SKIP_COLUMNS = """
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

# Each changed skip once, as it is now; consumers do not need states in between.
CHANGES = f"""
(SELECT {_SKIP_COLUMNS}, {_AUTOMATIC}, skip.revision AS changed, skip.because
 FROM poison_skip skip JOIN brokers_topic topic ON topic.id = skip.topic_id
 WHERE topic.name = %(topic)s AND skip.removed_revision IS NULL
   AND skip.revision > %(after)s
 ORDER BY skip.revision LIMIT %(limit)s)
UNION ALL
(SELECT {_SKIP_COLUMNS}, {_AUTOMATIC}, skip.removed_revision AS changed, skip.because
 FROM poison_skip skip JOIN brokers_topic topic ON topic.id = skip.topic_id
 WHERE topic.name = %(topic)s AND skip.removed_revision > %(after)s
 ORDER BY skip.removed_revision LIMIT %(limit)s)
ORDER BY changed LIMIT %(limit)s
"""  # noqa: S608 - all of it is ours

_ACTIVE = f"""
SELECT {_SKIP_COLUMNS}, {_SUSPECTED}, skip.revision, skip.because
FROM poison_skip skip JOIN brokers_topic topic ON topic.id = skip.topic_id
WHERE topic.name = %(topic)s AND skip.removed_revision IS NULL
  AND (%(group)s::text IS NULL OR skip.consumer_group IS NULL
       OR skip.consumer_group = %(group)s)
ORDER BY skip.id
"""  # noqa: S608 - all of it is ours


# As consumers read it in columns: times are microseconds since 1970.
_WIRE_COLUMNS = """
skip.id, skip.kind, skip.value, skip.consumer_group, skip.handler_version,
skip.redrive::text, (extract(epoch FROM skip.expires_at) * 1000000)::int8,
skip.reason, skip.by, (extract(epoch FROM skip.at) * 1000000)::int8, skip.poison_id
"""

_IN_COLUMNS = f"""
SELECT {_WIRE_COLUMNS}, {_SUSPECTED}, skip.is_suspected
FROM poison_skip skip JOIN brokers_topic topic ON topic.id = skip.topic_id
WHERE topic.name = %(topic)s AND skip.removed_revision IS NULL
  AND (%(group)s::text IS NULL OR skip.consumer_group IS NULL
       OR skip.consumer_group = %(group)s)
ORDER BY skip.is_suspected, skip.id
"""  # noqa: S608 - all of it is ours


def list_head(*, topic: str) -> SkipListHead:
    """Return epoch, newest revision and floor of a topic's skip list.

    An unknown topic has an empty list, at revision 0.
    """
    with connection.cursor() as cursor:
        cursor.execute(HEADS, {"topics": [topic]})
        row = cursor.fetchone()
        if row is None:
            cursor.execute(INSERT_EPOCH)
            cursor.execute(HEADS, {"topics": [topic]})
            row = cursor.fetchone()
    _, epoch, revision, floor = row
    return SkipListHead(epoch=epoch, revision=revision, floor=floor)


def snapshot(*, topic: str, consumer_group: str | None) -> SkipListSnapshot:
    """Read a topic's skip list: its revision, then its active skips.

    Some of the skips may be newer than the revision.
    """
    # The revision first: what commits in between is in the skips, and sent again.
    at = list_head(topic=topic)
    skips = _query_skips(_ACTIVE, {"topic": topic, "group": consumer_group})
    return SkipListSnapshot(epoch=at.epoch, revision=at.revision, skips=tuple(skips))


@contextmanager
def rows(*, topic: str, consumer_group: str | None) -> Iterator[SnapshotRows]:
    """Lend a block a topic's skips as `snapshot` reads them, but row by row.

    Each row is the columns of the API.
    """
    # The revision first, as in `snapshot`.
    at = list_head(topic=topic)
    with connection.cursor() as cursor:
        cursor.execute(_IN_COLUMNS, {"topic": topic, "group": consumer_group})
        yield SnapshotRows(at, cursor)


def _query_skips(statement: str, values: dict[str, Any]) -> list[ListedSkip]:
    """Execute a statement; return its rows as skips."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return [ListedSkip(*row) for row in cursor.fetchall()]
