"""Writes decisions about messages back to their rows in a producer's database.

Other programs may have changed, deleted or claimed the row meanwhile. No statement
waits for long: a row that is locked is left for later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from apps.outbox.models import Outbox
from apps.outbox.producer_rows import (
    MESSAGE_ID,
    RELEASE,
    STATE,
    Quarantine,
    RowState,
    filled,
)
from apps.outbox.sweeper_and_row_states import AsideState
from poisonguard.outbox.message import OutboxMessage, digest
from poisonguard.outbox.sweeping.row_reading import UnreadableColumn, header_pairs

# A longer body is not read again, so its id is not recognised once its row is deleted.
READ_BYTES = 16 * 2**20
LOCK_LIMIT = "SET LOCAL lock_timeout = '200ms'"

# A row that a sweeper cannot mark waits, and is reported as quarantined all the same.
# The outbox may have another database by now: a row has a message id, too.
_IS_IT = f"entry.row_id = %(row_id)s AND {MESSAGE_ID} = %(message_id)s"
_UNSENT = f"""
{_IS_IT} AND entry.sent_at IS NULL AND entry.duplicate_of IS NULL
AND (entry.quarantined_at IS NOT NULL OR entry.claim_token IS NULL)
"""
_SEND = f"""
UPDATE {{outbox}} AS entry
SET sent_at = now(), quarantined_at = NULL, dropped_at = NULL, reported_at = NULL,
    released_at = coalesce(entry.released_at, now()),
    claim_token = NULL, claimed_until = NULL
WHERE {_UNSENT}
RETURNING entry.producer, entry.message_id, entry.topic, entry.key, entry.headers,
    CASE WHEN octet_length(entry.body) <= {READ_BYTES} THEN entry.body END
"""  # noqa: S608 - made of constants
_NOTE_SENT = """
INSERT INTO {sent} (producer, message_id, digest)
VALUES (%(producer)s, %(message_id)s, %(digest)s) ON CONFLICT DO NOTHING
"""
_DROP = f"""
UPDATE {{outbox}} AS entry
SET dropped_at = now(), quarantined_at = coalesce(entry.quarantined_at, now()),
    quarantine_cause = coalesce(entry.quarantine_cause, 'manual'),
    reported_at = coalesce(entry.reported_at, now())
WHERE {_UNSENT} AND entry.dropped_at IS NULL
RETURNING entry.row_id
"""  # noqa: S608
_RESTORE = f"""
UPDATE {{outbox}} AS entry SET dropped_at = NULL
WHERE {_IS_IT} AND entry.sent_at IS NULL
  AND entry.quarantined_at IS NOT NULL AND entry.dropped_at IS NOT NULL
RETURNING entry.row_id
"""  # noqa: S608
_LOOK = f"SELECT {STATE} FROM {{outbox}} AS entry WHERE {_IS_IT}"  # noqa: S608
_STATEMENTS = {
    AsideState.SENT: _SEND,
    AsideState.DROPPED: _DROP,
    AsideState.QUARANTINED: _RESTORE,
    AsideState.RELEASED: RELEASE,
}


def settle(
    outbox: Outbox,
    connection: psycopg.Connection[Any],
    *,
    row_id: int,
    target: AsideState,
    quarantine: Quarantine,
) -> AsideState | None:
    """Update an outbox row to a state; return the one it has, None to try later.

    A row that was quarantined again after this quarantine is not released.
    """
    values = {
        "row_id": row_id,
        "until": quarantine.quarantined_at,
        "message_id": quarantine.message_id,
    }
    statement = filled(outbox, _STATEMENTS[target])
    row = connection.execute(statement, values).fetchone()
    if row is None:
        return _became(outbox, connection, values, target)
    if target is AsideState.SENT:
        _note_id(outbox, connection, row)
    return target


def _became(
    outbox: Outbox,
    connection: psycopg.Connection[Any],
    values: Mapping[str, Any],
    target: AsideState,
) -> AsideState | None:
    """Return the state of an outbox row that could not be changed."""
    row = connection.execute(filled(outbox, _LOOK), values).fetchone()
    if row is None or target is AsideState.RELEASED:
        # That a row was deleted does not say that it was sent.
        return target
    state = RowState(row[0])
    if state in {RowState.SENT, RowState.DUPLICATE}:
        return AsideState.SENT
    if target is AsideState.QUARANTINED or state.value == target.value:
        return target
    # It waits, and a sweeper is sending it.
    return None


def _note_id(
    outbox: Outbox, connection: psycopg.Connection[Any], row: Sequence[Any]
) -> None:
    """Note the id of a message as sent, so that a later use of it is noticed."""
    producer, message_id, topic, key, headers, body = row
    texts = (producer, message_id, topic, key)
    if not isinstance(body, bytes) or not all(isinstance(each, str) for each in texts):
        return
    try:
        pairs = header_pairs(headers)
    except (UnreadableColumn, TypeError, ValueError):
        return
    message = OutboxMessage(
        producer=producer,
        message_id=message_id,
        topic=topic,
        body=body,
        headers=pairs,
        key=key,
    )
    connection.execute(
        filled(outbox, _NOTE_SENT),
        {
            "producer": producer,
            "message_id": message_id,
            "digest": digest(message),
        },
    )
