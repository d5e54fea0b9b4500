"""Delete sent rows and duplicates after some days, and ids of sent messages later."""

from __future__ import annotations

from datetime import timedelta

from poisonguard.outbox.sweeping.connection import OutboxConnection

BATCH = 1_000
# In one go; what is left is deleted soon after.
MOST_BATCHES = 10

# A row that another program marked as sent, or as a duplicate, though no sweeper sent
# its message, stays. A ctid may also be that of a waiting row, in another partition.
SENT_ROWS = """
DELETE FROM {outbox} WHERE sent_at < now() - %(age)s AND row_id = ANY (ARRAY(
    SELECT row_id FROM {outbox} AS entry
    WHERE sent_at < now() - %(age)s AND EXISTS (
        SELECT FROM {sent} AS past
        WHERE past.producer = entry.producer::text
          AND past.message_id = entry.message_id::text
    )
    ORDER BY sent_at LIMIT %(batch)s FOR UPDATE SKIP LOCKED
)) RETURNING 1
"""
DUPLICATES = """
DELETE FROM {outbox} WHERE duplicate_of IS NOT NULL AND row_id = ANY (ARRAY(
    SELECT row_id FROM {outbox} AS entry
    WHERE duplicate_of IS NOT NULL AND coalesce(created_at, 'epoch') < now() - %(age)s
      AND (
          EXISTS (
              SELECT FROM {sent} AS past
              WHERE past.producer = entry.producer::text
                AND past.message_id = entry.message_id::text
          )
          OR EXISTS (
              SELECT FROM {outbox} AS original
              WHERE original.row_id = entry.duplicate_of
                AND original.row_id <> entry.row_id
                AND original.producer::text = entry.producer::text
                AND original.message_id::text = entry.message_id::text
          )
      )
    LIMIT %(batch)s FOR UPDATE OF entry SKIP LOCKED
)) RETURNING 1
"""
# As long as there are duplicates, their ids say that they are some.
IDS = """
DELETE FROM {sent} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {sent} AS past
    WHERE sent_at < now() - %(age)s AND NOT EXISTS (
        SELECT FROM {outbox} AS entry
        WHERE entry.duplicate_of IS NOT NULL
          AND entry.producer::text = past.producer
          AND entry.message_id::text = past.message_id
    )
    ORDER BY sent_at LIMIT %(batch)s FOR UPDATE OF past SKIP LOCKED
)) RETURNING 1
"""


def prune(
    connection: OutboxConnection, *, rows_for: timedelta, ids_for: timedelta
) -> bool:
    """Delete old sent rows, duplicates and ids of an outbox; True if more may exist."""
    ages = ((SENT_ROWS, rows_for), (DUPLICATES, rows_for), (IDS, ids_for))
    has_more = [_prune(connection, statement, age) for statement, age in ages]
    return any(has_more)


def _prune(connection: OutboxConnection, statement: str, age: timedelta) -> bool:
    for _ in range(MOST_BATCHES):
        values = {"age": age, "batch": BATCH}
        if len(connection.execute(statement, values)) < BATCH:
            return False
    return True
