"""Build the messages that redrives send, and translate the brokers' answers."""

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
from apps.brokers.services.topics import RoutedMessage
from apps.core.arrays import array
from apps.core.text import storable
from apps.poison import redrive_signatures
from apps.poison.services import RedriveAnswer
from apps.poison.states import RedriveOutcome
from poisonguard.contract import REDRIVE_HEADER

NOT_THIS_ONE = (
    "the broker says that it had this message before, but it was never sent there: "
    "it takes it for another, and has put it nowhere"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboundMessage:
    """One redrive, ready to publish; `again`: the broker may have it already."""

    redrive: uuid.UUID
    poison: int
    moves: bool
    again: bool
    addressed: RoutedMessage


class _Row(NamedTuple):
    """A redrive with its poison and its body: one row of `_READ`."""

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


# Plain SQL: thousands of model objects would cost more than sending the messages.
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
class ClaimedWindow:
    """The redrives claimed to be sent together, in order, as read from the database."""

    rows: Sequence[_Row] = ()
    topics: Mapping[int, Topic] = field(default_factory=dict)

    def pack(self) -> list[OutboundMessage]:
        """Build the messages to publish, without asking the database."""
        return [_to_message(row, self.topics) for row in self.rows]


def read(redrives: Sequence[uuid.UUID]) -> ClaimedWindow:
    """Read the rows of these redrives, in the order given."""
    with connection.cursor() as cursor:
        cursor.execute(_READ, [array(redrives)])
        rows = {row[0]: _Row(*row) for row in cursor.fetchall()}
    topic_ids = {row.topic for row in rows.values()}
    topics = Topic.objects.select_related("broker").in_bulk(topic_ids)
    return ClaimedWindow([rows[redrive] for redrive in redrives], topics)


def _to_message(row: _Row, topics: Mapping[int, Topic]) -> OutboundMessage:
    """Build the message to publish, and what its redrive needs, from a row."""
    topic = topics[row.topic]
    return OutboundMessage(
        redrive=row.redrive,
        poison=row.poison,
        moves=row.queue != "" or row.topic != row.came_from,
        again=row.copies > 1,
        addressed=RoutedMessage(
            topic=topic,
            queue=row.queue,
            body=row.content,
            headers=_headers(row, topic),
            dedupe=f"poisonweb-{row.poison}-{row.n}",
        ),
    )


def _headers(row: _Row, topic: Topic) -> tuple[Header, ...]:
    """Return the headers to send; a message given back keeps exactly its own."""
    captured = tuple(zip(row.headers[::2], row.headers[1::2], strict=True))
    if row.queue:
        return captured
    headers = vocabulary.leaving(captured)
    if not row.is_marked:
        return headers
    token = redrive_signatures.sign(
        redrive=row.redrive, topic=topic.name, digest=row.digest
    )
    return (*headers, (REDRIVE_HEADER.encode(), token.encode()))


def is_unsent(message: OutboundMessage, outcome: ports.PublishOutcome) -> bool:
    """Tell whether the broker surely has no copy, from this attempt or an earlier."""
    return outcome.kind is ports.OutcomeKind.UNSENT and not message.again


def to_answer(message: OutboundMessage, outcome: ports.PublishOutcome) -> RedriveAnswer:
    """Turn the broker's outcome into the answer that a redrive stores."""
    success = RedriveOutcome.MOVED if message.moves else RedriveOutcome.SENT
    result = {
        ports.OutcomeKind.SENT: success,
        ports.OutcomeKind.REFUSED: RedriveOutcome.REFUSED,
        ports.OutcomeKind.UNKNOWN: RedriveOutcome.UNKNOWN,
        # An attempt before this one may have arrived.
        ports.OutcomeKind.UNSENT: RedriveOutcome.UNKNOWN,
        # Only a send that was tried before can be what the broker has already.
        ports.OutcomeKind.DUPLICATE: success
        if message.again
        else RedriveOutcome.REFUSED,
    }[outcome.kind]
    detail = outcome.detail
    if outcome.kind is ports.OutcomeKind.DUPLICATE and not message.again:
        detail = f"{NOT_THIS_ONE}. {detail}".strip()
    return RedriveAnswer(
        redrive=message.redrive,
        outcome=result,
        # A broker's answer may quote the very bytes that it could not read.
        detail=storable(detail),
        bookmark=outcome.bookmark,
    )
