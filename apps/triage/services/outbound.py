"""Redrives made ready for their brokers, and brokers' answers made ready for us."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from django.db import connection

from apps.brokers import ports
from apps.brokers import vocabularies as vocabulary
from apps.brokers.models import Topic
from apps.brokers.ports import Header
from apps.brokers.services.topics import Addressed
from apps.core.arrays import array
from apps.core.text import storable
from apps.poison import tokens
from apps.poison.services import RedriveAnswer
from apps.poison.states import Outcome
from poisonguard.contract import REDRIVE_HEADER

NOT_THIS_ONE = (
    "the broker says that it had this message before, but it was never sent there: "
    "it takes it for another, and has put it nowhere"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """One redrive, ready for the broker; `again` tells that it may well have it."""

    redrive: uuid.UUID
    poison: int
    moves: bool
    again: bool
    message: Addressed


class _Row(NamedTuple):
    """A redrive with its poison and its body, as `_READ` finds them."""

    redrive: uuid.UUID
    poison: int
    n: int
    topic: int
    queue: str
    is_marked: bool
    copies: int
    came_from: int
    digest: bytes
    content: bytes
    headers: list[bytes]


# Thousands of rows that are read once: as objects they would cost more than their send.
_READ = """
SELECT redrive.id, redrive.poison_id, redrive.n, redrive.topic_id, redrive.queue,
       redrive.queue = '' AND redrive.digest IS NULL, redrive.copies,
       poison.topic_id, poison.digest, body.content, body.headers
FROM poison_redrive redrive
JOIN poison_poison poison ON poison.id = redrive.poison_id
JOIN poison_body body ON body.poison_id = redrive.poison_id
     AND body.day = (poison.captured_at AT TIME ZONE 'UTC')::date
WHERE redrive.id = ANY(%s::uuid[])
"""


@dataclass(frozen=True, slots=True)
class Window:
    """What was claimed to be sent together, in order, as the database has it."""

    rows: Sequence[_Row] = ()
    topics: Mapping[int, Topic] = field(default_factory=dict)

    def pack(self) -> list[Parcel]:
        """Make it ready for its brokers, which asks the database nothing."""
        return [_pack_one(row, self.topics) for row in self.rows]


def read(redrives: Sequence[uuid.UUID]) -> Window:
    """Read what is to be sent, in the order given."""
    with connection.cursor() as cursor:
        cursor.execute(_READ, [array(redrives)])
        rows = {row[0]: _Row(*row) for row in cursor.fetchall()}
    wanted = {row.topic for row in rows.values()}
    topics = Topic.objects.select_related("broker").in_bulk(wanted)
    return Window([rows[redrive] for redrive in redrives], topics)


def _pack_one(row: _Row, topics: Mapping[int, Topic]) -> Parcel:
    topic = topics[row.topic]
    return Parcel(
        redrive=row.redrive,
        poison=row.poison,
        moves=row.queue != "" or row.topic != row.came_from,
        again=row.copies > 1,
        message=Addressed(
            topic=topic,
            queue=row.queue,
            body=row.content,
            headers=_headers(row, topic),
            dedupe=f"poisonweb-{row.poison}-{row.n}",
        ),
    )


def _headers(row: _Row, topic: Topic) -> tuple[Header, ...]:
    """Give what it leaves with: what is given back leaves exactly as it came."""
    headers = tuple(zip(row.headers[::2], row.headers[1::2], strict=True))
    if row.queue:
        return headers
    leaving = vocabulary.leaving(headers)
    if not row.is_marked:
        return leaving
    token = tokens.sign(redrive=row.redrive, topic=topic.name, digest=row.digest)
    return (*leaving, (REDRIVE_HEADER.encode(), token.encode()))


def is_unsent(parcel: Parcel, outcome: ports.Outcome) -> bool:
    """Tell whether the broker surely has no copy: none from this attempt or before."""
    return outcome.kind is ports.OutcomeKind.UNSENT and not parcel.again


def answered(parcel: Parcel, outcome: ports.Outcome) -> RedriveAnswer:
    arrived = Outcome.MOVED if parcel.moves else Outcome.SENT
    became = {
        ports.OutcomeKind.SENT: arrived,
        ports.OutcomeKind.REFUSED: Outcome.REFUSED,
        ports.OutcomeKind.UNKNOWN: Outcome.UNKNOWN,
        # An attempt before this one may have arrived.
        ports.OutcomeKind.UNSENT: Outcome.UNKNOWN,
        # Only a send that was tried before can be what the broker has already.
        ports.OutcomeKind.DUPLICATE: arrived if parcel.again else Outcome.REFUSED,
    }[outcome.kind]
    detail = outcome.detail
    if outcome.kind is ports.OutcomeKind.DUPLICATE and not parcel.again:
        detail = f"{NOT_THIS_ONE}. {detail}".strip()
    return RedriveAnswer(
        redrive=parcel.redrive,
        outcome=became,
        # A broker may answer with the very bytes that it could not bear.
        detail=storable(detail),
        bookmark=outcome.bookmark,
    )
