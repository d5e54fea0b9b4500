"""Measures what waits, by topic: `put` refuses messages by these figures."""

from __future__ import annotations

from poisonguard.contract import NAME_LIMIT
from poisonguard.outbox.sweeping.connection import OutboxConnection

# Of the topics with the most waiting rows; the others count as empty.
MOST_TOPICS = 1_000
SECONDS = 5.0

WRITE = f"""
WITH waiting AS (
    SELECT left(coalesce(entry.topic::text, ''), {NAME_LIMIT}) AS topic,
        count(*) AS rows, coalesce(sum(octet_length(entry.body)), 0) AS bytes,
        min(entry.created_at) AS oldest_at
    FROM {{outbox}} AS entry WHERE {{waiting}}
    GROUP BY 1 ORDER BY 2 DESC LIMIT {MOST_TOPICS}
), empty AS (
    UPDATE {{figures}} AS figure
    SET waiting_rows = 0, waiting_bytes = 0, oldest_at = NULL, measured_at = now()
    WHERE NOT EXISTS (SELECT FROM waiting WHERE waiting.topic = figure.topic)
)
INSERT INTO {{figures}} AS figure
    (topic, waiting_rows, waiting_bytes, oldest_at, measured_at)
SELECT topic, rows, bytes, oldest_at, now() FROM waiting
ON CONFLICT (topic) DO UPDATE
SET waiting_rows = EXCLUDED.waiting_rows, waiting_bytes = EXCLUDED.waiting_bytes,
    oldest_at = EXCLUDED.oldest_at, measured_at = EXCLUDED.measured_at
"""  # noqa: S608 - made of constants


def write(connection: OutboxConnection) -> None:
    """Write the figures of all topics; those of which nothing waits go to 0."""
    connection.execute_within(SECONDS, WRITE)
