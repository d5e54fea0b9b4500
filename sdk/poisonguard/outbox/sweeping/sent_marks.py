"""Mark rows as sent: all rows of a window in one statement, by their numbers.

A row that another connection has changed since it was claimed keeps waiting: what was
sent is not what it says now. Its id is noted as sent all the same, so that neither a
copy of the old message nor the new message under its id goes out unseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from poisonguard.outbox.sweeping.array_literals import bytea_array, text_array
from poisonguard.outbox.sweeping.claimed_row_decoding import ClaimedRow
from poisonguard.outbox.sweeping.connection import OutboxConnection

GIVEN = """
given AS MATERIALIZED (
    SELECT * FROM unnest(
        %(row_ids)s::bigint[], %(producers)s::text[], %(message_ids)s::text[],
        %(digests)s::bytea[]
    ) AS given (row_id, producer, message_id, digest)
)
"""
# No joins: Postgres takes the rows of one claim for few, and would compare each pair.
# `IS TRUE` has it hash the marked rows instead.
MARK = f"""
WITH {GIVEN}, marked AS (
    UPDATE {{outbox}} AS entry
    SET sent_at = now(), claim_token = NULL, claimed_until = NULL
    WHERE entry.row_id = ANY (%(row_ids)s::bigint[])
      AND entry.claim_token = %(token)s
      AND entry.xmin::text = ANY (%(versions)s::text[]) AND {{waiting}}
    RETURNING entry.row_id, entry.sent_at
), noted AS (
    INSERT INTO {{sent}} (producer, message_id, digest)
    SELECT producer, message_id, digest FROM given
    WHERE (row_id IN (SELECT row_id FROM marked WHERE sent_at IS NOT NULL)) IS TRUE
    ON CONFLICT DO NOTHING
)
SELECT row_id FROM marked WHERE sent_at IS NOT NULL
"""  # noqa: S608 - made of constants
NOTE = f"""
WITH {GIVEN}, noted AS (
    INSERT INTO {{sent}} (producer, message_id, digest)
    SELECT producer, message_id, digest FROM given
    ON CONFLICT DO NOTHING RETURNING producer, message_id, digest
)
SELECT row_id FROM given JOIN noted USING (producer, message_id, digest)
"""  # noqa: S608
# So long as a row that was sent cannot be marked, its id is not pruned.
REFRESH = f"""
WITH {GIVEN}
UPDATE {{sent}} AS past SET sent_at = now() FROM given
WHERE past.producer = given.producer AND past.message_id = given.message_id
  AND past.digest = given.digest
"""  # noqa: S608


def mark_sent(
    connection: OutboxConnection, token: UUID, rows: Sequence[ClaimedRow]
) -> set[int]:
    """Mark outbox rows as sent; return those that no other connection changed."""
    answer = connection.execute(MARK, {"token": token, **_columns(rows)})
    return {row_id for (row_id,) in answer}


def note_sent(connection: OutboxConnection, rows: Sequence[ClaimedRow]) -> list[int]:
    """Note message ids as sent whose outbox rows could not be marked.

    Return the rows whose ids were new there: of the others the answer to their mark was
    lost.
    """
    answer = connection.execute(NOTE, _columns(rows))
    return sorted(row_id for (row_id,) in answer)


def refresh_sent(connection: OutboxConnection, rows: Sequence[ClaimedRow]) -> None:
    """Let the ids of rows count as sent just now, as far as they were sent."""
    connection.execute(REFRESH, _columns(rows))


def _columns(rows: Sequence[ClaimedRow]) -> dict[str, Any]:
    return {
        "row_ids": [row.row_id for row in rows],
        "versions": sorted({row.version for row in rows}),
        "producers": text_array(row.message.producer for row in rows),
        "message_ids": text_array(row.message.message_id for row in rows),
        "digests": bytea_array(row.digest for row in rows),
    }
