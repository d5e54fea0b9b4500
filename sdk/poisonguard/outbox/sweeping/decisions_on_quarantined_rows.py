"""Carry out on quarantined rows what a person decided about their messages.

Poisonweb does this for the outboxes that are registered there. Rows that the command of
the SDK reported are settled with it, by people who may enter that database.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from poisonguard.outbox.message import OutboxMessage, digest
from poisonguard.outbox.sweeping.claimed_row_decoding import (
    UnreadableColumn,
    header_pairs,
)
from poisonguard.outbox.sweeping.connection import OutboxConnection


class Settled(StrEnum):
    """What becomes of a quarantined row.

    Sent: its message was requeued in Poisonweb. Released: the sweeper sends it,
    whatever else has its id. Dropped: it stays, and is not sent. Quarantined: it was
    dropped, and is no longer.
    """

    SENT = "sent"
    RELEASED = "released"
    DROPPED = "dropped"
    QUARANTINED = "quarantined"


_IS_OPEN = """
entry.row_id = %(row_id)s AND entry.quarantined_at IS NOT NULL
  AND entry.sent_at IS NULL AND entry.duplicate_of IS NULL
"""
_NO_CLAIM = "claim_token = NULL, claimed_until = NULL"
_STATEMENTS = {
    # Its id is noted in the same statement: a later use of it is noticed.
    Settled.SENT: f"""
        WITH read AS (
            SELECT row_id FROM {{outbox}} AS entry WHERE {_IS_OPEN} FOR UPDATE
        ), noted AS (
            INSERT INTO {{sent}} (producer, message_id, digest)
            SELECT %(producer)s, %(message_id)s, %(digest)s FROM read
            WHERE %(digest)s::bytea IS NOT NULL
            ON CONFLICT DO NOTHING
        )
        UPDATE {{outbox}} AS entry
        SET sent_at = now(), quarantined_at = NULL, dropped_at = NULL,
            reported_at = NULL, released_at = coalesce(entry.released_at, now()),
            {_NO_CLAIM}
        FROM read WHERE entry.row_id = read.row_id RETURNING entry.row_id
    """,  # noqa: S608 - made of constants
    Settled.RELEASED: f"""
        UPDATE {{outbox}} AS entry
        SET quarantined_at = NULL, dropped_at = NULL, reported_at = NULL,
            released_at = now(), due_at = now(), {_NO_CLAIM}
        WHERE {_IS_OPEN} RETURNING entry.row_id
    """,  # noqa: S608
    Settled.DROPPED: f"""
        UPDATE {{outbox}} AS entry SET dropped_at = coalesce(entry.dropped_at, now())
        WHERE {_IS_OPEN} RETURNING entry.row_id
    """,  # noqa: S608
    Settled.QUARANTINED: f"""
        UPDATE {{outbox}} AS entry SET dropped_at = NULL
        WHERE {_IS_OPEN} RETURNING entry.row_id
    """,  # noqa: S608
}
_READ = f"""
SELECT entry.producer::text, entry.message_id::text, entry.topic::text,
    entry.key::text, entry.headers, entry.body
FROM {{outbox}} AS entry WHERE {_IS_OPEN}
"""  # noqa: S608


def settle(connection: OutboxConnection, row_id: int, target: Settled) -> bool:
    """Move a quarantined outbox row to the state `target`; False for other rows."""
    values: dict[str, object] = {"row_id": row_id}
    if target is Settled.SENT:
        values |= _identity(connection.execute(_READ, values))
    return bool(connection.execute(_STATEMENTS[target], values))


def _identity(rows: Sequence[Sequence[object]]) -> dict[str, object]:
    """Return the producer, id and digest of a quarantined outbox row's message.

    Each is None if it cannot be read.
    """
    for producer, message_id, topic, key, headers, body in rows:
        try:
            pairs = header_pairs(headers)
        except UnreadableColumn:
            break
        texts = (producer, message_id, topic, key)
        if not (isinstance(body, bytes) and all(isinstance(t, str) for t in texts)):
            break
        message = OutboxMessage(
            producer=str(producer),
            message_id=str(message_id),
            topic=str(topic),
            body=body,
            headers=pairs,
            key=str(key),
        )
        return {
            "producer": producer,
            "message_id": message_id,
            "digest": digest(message),
        }
    return dict.fromkeys(("producer", "message_id", "digest"))
