"""Build the messages that redrives publish, and translate the brokers' answers."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from apps.brokers import adapter_contract
from apps.brokers import failure_headers as vocabulary
from apps.brokers.adapter_contract import Header
from apps.brokers.models import Topic
from apps.brokers.services.topics_and_routing_publisher import RoutedMessage
from apps.core.queryset_sql import binary_rows
from apps.core.text_cleaning import storable
from apps.poison import redrive_ids, redrive_signatures
from apps.poison.services.sends import Send
from apps.poison.states import IN_FLIGHT, RedriveOutcome, silent_before
from poisonguard.contract import REDRIVE_HEADER

WINDOW_BYTES = 32 * 1024 * 1024
NOT_THIS_ONE = (
    "the broker says that it had this message before, but it was never sent there: "
    "it takes it for another, and has put it nowhere"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboundMessage:
    """One item, ready to publish; `again`: the broker may have it already.

    `digest` is set where the message cannot carry the mark of a redrive.
    """

    item: int
    n: int
    redrive: uuid.UUID
    poison: int
    moves: bool
    copies: int
    digest: bytes | None
    addressed: RoutedMessage

    @property
    def again(self) -> bool:
        return self.copies > 1


class _Row(NamedTuple):
    """A held item with its poison and its body: one row of `_READ`."""

    item: int
    poison: int
    n: int
    own_redrive: uuid.UUID | None
    topic: int
    queue: str
    known_redrive: uuid.UUID | None
    known_outcome: str | None
    known_copies: int | None
    state: str
    is_sendable: bool
    came_from: int
    digest: bytes
    content: bytes
    headers: list[bytes]


# Plain SQL: thousands of model objects would cost more than sending the messages.
# OFFSET 0 makes Postgres take the items in their order, and look up each of the others
# by its key: where statistics say that a table is empty, a join would read all of it
# for each item.
# The window is that of the first held item: to list a million messages' windows each
# time would cost as much as the messages.
_READ = """
SELECT held.item, held.poison_id, held.n, held.redrive, held.topic_id, held.queue,
       known.id, known.outcome, known.copies, held.state, held.is_sendable,
       held.came_from, held.digest, body.content, body.headers
FROM (
    SELECT * FROM (
        SELECT hold.*, poison.state, poison.topic_id AS came_from, poison.digest,
               poison.state = 'open' OR poison.state = 'redriven'
               AND poison.sent_at < %(silent_before)s AS is_sendable,
               (poison.captured_at AT TIME ZONE 'UTC')::date AS day,
               sum(poison.size) OVER (ORDER BY hold.item) - poison.size AS ahead
        FROM (SELECT * FROM poison_hold
              WHERE operation = %(operation)s
                AND item >= %(first)s
                AND item < (SELECT min(item) / %(size)s * %(size)s + %(size)s
                            FROM poison_hold
                            WHERE operation = %(operation)s AND item >= %(first)s)
              ORDER BY item LIMIT %(most)s) hold
        CROSS JOIN LATERAL (
            SELECT * FROM poison_poison WHERE id = hold.poison_id OFFSET 0
        ) poison
    ) sized
    WHERE ahead < %(bytes)s OFFSET 0
) held
CROSS JOIN LATERAL (
    SELECT * FROM poison_body
    WHERE poison_id = held.poison_id AND day = held.day OFFSET 0
) body
LEFT JOIN LATERAL (
    SELECT * FROM poison_redrive
    WHERE poison_id = held.poison_id AND n = held.n OFFSET 0
) known ON true
ORDER BY held.item
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadItems:
    """Held items of one window, in order, as read from the database.

    `messages` are to be sent. `answered` were answered before they were marked, and
    `decided` are no longer to be sent, each with its state: both are to be freed.
    """

    messages: Sequence[OutboundMessage] = ()
    answered: Sequence[int] = ()
    decided: Mapping[int, str] = field(default_factory=dict)


def read(
    *,
    operation: int,
    first: int,
    size: int,
    most: int,
    unmarked: Collection[int],
    topics: MutableMapping[int, Topic],
    now: datetime,
) -> ReadItems:
    """Read an operation's first held messages from `first` on, to be sent.

    At most `most` of them, of one window, which has `size` items, and at most
    WINDOW_BYTES of bodies, but at least one. Adds the topics that it reads to `topics`.
    """
    values: dict[str, Any] = {
        "operation": operation,
        "first": first,
        "size": size,
        "most": most,
        "bytes": WINDOW_BYTES,
        "silent_before": silent_before(now),
    }
    rows = [_Row(*row) for row in binary_rows(_READ, values)]
    answered, decided, sendable = [], {}, []
    for row in rows:
        if row.known_outcome is not None and row.known_outcome not in IN_FLIGHT:
            answered.append(row.item)
        elif row.is_sendable or row.known_redrive is not None:
            sendable.append(row)
        else:
            decided[row.item] = row.state
    if new_topics := {row.topic for row in sendable} - topics.keys():
        with_broker = Topic.objects.select_related("broker")
        topics.update(with_broker.in_bulk(new_topics))
    messages = [
        _to_message(
            row,
            operation=operation,
            topic=topics[row.topic],
            is_unmarked=row.queue != "" or row.topic in unmarked,
        )
        for row in sendable
    ]
    return ReadItems(messages=messages, answered=answered, decided=decided)


def _to_message(
    row: _Row, *, operation: int, topic: Topic, is_unmarked: bool
) -> OutboundMessage:
    """Build the message that an operation sends to a broker from a held item's row."""
    redrive = (
        row.known_redrive
        or row.own_redrive
        or redrive_ids.pack(operation, row.item, row.n)
    )
    return OutboundMessage(
        item=row.item,
        n=row.n,
        redrive=redrive,
        poison=row.poison,
        moves=row.queue != "" or row.topic != row.came_from,
        copies=(row.known_copies or 0) + 1,
        digest=row.digest if is_unmarked else None,
        addressed=RoutedMessage(
            topic=topic,
            queue=row.queue,
            body=row.content,
            headers=_headers(row, redrive, topic, is_unmarked=is_unmarked),
            dedupe=f"poisonweb-{row.poison}-{row.n}",
        ),
    )


def _headers(
    row: _Row, redrive: uuid.UUID, topic: Topic, *, is_unmarked: bool
) -> tuple[Header, ...]:
    """Return a message's headers to send; one given back keeps its own."""
    captured = tuple(zip(row.headers[::2], row.headers[1::2], strict=True))
    if row.queue:
        return captured
    headers = vocabulary.leaving(captured)
    if is_unmarked:
        return headers
    token = redrive_signatures.sign(
        redrive=redrive, topic=topic.name, digest=row.digest
    )
    return (*headers, (REDRIVE_HEADER.encode(), token.encode()))


def is_unsent(
    message: OutboundMessage, outcome: adapter_contract.PublishOutcome
) -> bool:
    """Tell whether the broker surely has no copy of an operation's message."""
    return outcome.kind is adapter_contract.OutcomeKind.UNSENT and not message.again


def to_send(
    message: OutboundMessage,
    outcome: adapter_contract.PublishOutcome,
    *,
    operation: int,
    claimed_at: datetime,
) -> Send:
    """Return the record of a redrive's send, with the broker's answer.

    The broker may have the message.
    """
    detail = outcome.detail
    if outcome.kind is adapter_contract.OutcomeKind.DUPLICATE and not message.again:
        detail = f"{NOT_THIS_ONE}. {detail}".strip()
    return Send(
        poison=message.poison,
        operation=operation,
        item=message.item,
        n=message.n,
        redrive=message.redrive,
        topic=message.addressed.topic.pk,
        queue=message.addressed.queue,
        digest=message.digest,
        copies=message.copies,
        claimed_at=claimed_at,
        outcome=outcome_of(message, outcome),
        # A broker's answer may quote the very bytes that it could not read.
        detail=storable(detail) if detail else "",
        bookmark=outcome.bookmark,
    )


def outcome_of(
    message: OutboundMessage, outcome: adapter_contract.PublishOutcome
) -> RedriveOutcome:
    """Return the outcome of a redrive that the broker's answer means."""
    success = RedriveOutcome.MOVED if message.moves else RedriveOutcome.SENT
    match outcome.kind:
        case adapter_contract.OutcomeKind.SENT:
            return success
        case adapter_contract.OutcomeKind.REFUSED:
            return RedriveOutcome.REFUSED
        # Only a send that was tried before can be what the broker has already.
        case adapter_contract.OutcomeKind.DUPLICATE:
            return success if message.again else RedriveOutcome.REFUSED
        # An attempt before an unsent one may have arrived.
        case adapter_contract.OutcomeKind.UNKNOWN | adapter_contract.OutcomeKind.UNSENT:
            return RedriveOutcome.UNKNOWN
