"""Measure what waits, by topic: `put` refuses messages by these figures."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

from poisonguard.contract import NAME_LIMIT
from poisonguard.outbox.sweeping.connection import OutboxConnection

# Of the topics with the most waiting rows; the others count as empty.
MOST_TOPICS = 1_000
SECONDS = 5.0
MOST_QUARANTINED = 100_000
# As long as a topic of which nothing waits stays in the table: `put` reads all of it.
EMPTY_SECONDS = 60

WAITING = f"""
WITH waiting AS (
    SELECT left(coalesce(entry.topic::text, ''), {NAME_LIMIT}) AS topic,
        count(*) AS rows, coalesce(sum(octet_length(entry.body)), 0) AS bytes,
        min(entry.created_at) AS oldest_at
    FROM {{outbox}} AS entry WHERE {{waiting}}
    GROUP BY 1 ORDER BY 2 DESC LIMIT {MOST_TOPICS}
)
"""  # noqa: S608 - made of constants
# Where nothing waits, one figure is written all the same: it shows a sweeper at work.
FIGURES = f"""
, empty AS (
    SELECT topic, waiting_rows, measured_at, NOT EXISTS (SELECT FROM waiting)
        AND topic = (SELECT min(topic) FROM {{figures}}) AS is_only_fresh
    FROM {{figures}}
    WHERE topic NOT IN (SELECT topic FROM waiting)
), emptied AS (
    UPDATE {{figures}} AS figure
    SET waiting_rows = 0, waiting_bytes = 0, oldest_at = NULL, measured_at = now()
    FROM empty
    WHERE figure.topic = empty.topic
      AND (empty.waiting_rows <> 0 OR empty.is_only_fresh)
), deleted AS (
    DELETE FROM {{figures}} AS figure
    USING empty
    WHERE figure.topic = empty.topic
      AND empty.waiting_rows = 0 AND NOT empty.is_only_fresh
      AND empty.measured_at < now() - interval '{EMPTY_SECONDS} seconds'
), written AS (
INSERT INTO {{figures}} AS figure
    (topic, waiting_rows, waiting_bytes, oldest_at, measured_at)
SELECT topic, rows, bytes, oldest_at, now() FROM waiting
ON CONFLICT (topic) DO UPDATE
SET waiting_rows = EXCLUDED.waiting_rows, waiting_bytes = EXCLUDED.waiting_bytes,
    oldest_at = EXCLUDED.oldest_at, measured_at = EXCLUDED.measured_at
)
"""  # noqa: S608 - made of constants
SUM = f"""
SELECT coalesce(sum(rows), 0)::bigint, coalesce(sum(bytes), 0)::bigint,
    CASE WHEN min(oldest_at) BETWEEN '1000-01-01' AND '9000-01-01'
         THEN min(oldest_at) END,
    (SELECT count(*) FROM (
        SELECT FROM {{outbox}} AS entry
        WHERE entry.quarantined_at IS NOT NULL AND entry.dropped_at IS NULL
        LIMIT {MOST_QUARANTINED}
    ) AS quarantined)
FROM waiting
"""  # noqa: S608 - made of constants
READ = WAITING + SUM
WRITE = WAITING + FIGURES + SUM


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxBacklog:
    """How many rows of an outbox wait, and how many are quarantined.

    `oldest_at` is the time of the oldest waiting row, None where no row waits.

    Counts the 1,000 topics with the most rows, and up to 100,000 quarantined rows that
    no person has decided about. `measured_at` is seconds since 1970, None before the
    first look at the table.
    """

    rows: int = 0
    bytes: int = 0
    oldest_at: datetime | None = None
    quarantined: int = 0
    measured_at: float | None = None


def write(connection: OutboxConnection) -> OutboxBacklog:
    """Write the outbox's backlog figures of all topics, and return their sum.

    Those of topics of which nothing waits go to 0, and are deleted after a minute.
    """
    return _measured(connection, WRITE)


def read(connection: OutboxConnection) -> OutboxBacklog:
    """Count what waits in an outbox, and write no figures: no sweeper is at work."""
    return _measured(connection, READ)


def _measured(connection: OutboxConnection, statement: str) -> OutboxBacklog:
    began = time.time()
    ((rows, size, oldest_at, quarantined),) = connection.execute_within(
        SECONDS, statement
    )
    return OutboxBacklog(
        rows=rows,
        bytes=size,
        oldest_at=oldest_at,
        quarantined=quarantined,
        measured_at=began,
    )
