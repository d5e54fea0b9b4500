"""The statements of a producer, for the tables of one schema."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from poisonguard.errors import Misconfigured

# As many waiting rows as a process counts where the sweeper does not.
COUNTED_ROWS = 100_000
IDENTIFIER_BYTES = 63

INSERT = """
INSERT INTO {0}poisonguard_outbox
    (producer, message_id, topic, key, body, headers, due_at)
VALUES (%s::text, %s::text, %s::text, %s::text, %s::bytea, %s::bytea[],
    coalesce(%s::timestamptz, now()))
ON CONFLICT DO NOTHING RETURNING row_id
"""
COMPARE = """
SELECT (topic, key, body, headers) = (%s::text, %s::text, %s::bytea, %s::bytea[])
FROM {0}poisonguard_outbox WHERE (producer, message_id) = (%s::text, %s::text)
"""
WAITING = "sent_at IS NULL AND duplicate_of IS NULL AND quarantined_at IS NULL"
IS_WAITING = f"""
SELECT EXISTS (
    SELECT FROM {{0}}poisonguard_outbox
    WHERE (topic, key) = (%s::text, %s::text) AND {WAITING}
)
"""  # noqa: S608 - made of constants
# Topics, with how old the oldest row and the figures are in seconds. Before its release
# 17 Postgres fails to subtract an infinite time, and with it the transaction.
READ_FIGURES = """
SELECT topic, waiting_rows, waiting_bytes,
    CASE WHEN isfinite(oldest_at)
         THEN extract(epoch FROM clock_timestamp() - oldest_at)::float8 END,
    extract(epoch FROM clock_timestamp() - measured_at)::float8
FROM {0}poisonguard_outbox_figures
"""
COUNT = f"""
SELECT topic, count(*), sum(body_bytes)::bigint,
    extract(
        epoch FROM clock_timestamp()
        - min(created_at) FILTER (WHERE isfinite(created_at))
    )::float8
FROM (
    SELECT topic, body_bytes, created_at FROM {{0}}poisonguard_outbox
    WHERE {WAITING} ORDER BY row_id LIMIT {COUNTED_ROWS}
) AS waiting GROUP BY topic
"""  # noqa: S608


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerStatements:
    """Each with the schema before its tables, in the style of psycopg."""

    insert: str
    compare: str
    is_waiting: str
    read_figures: str
    count: str


@lru_cache(maxsize=1_000)
def statements_in(schema: str) -> ProducerStatements:
    """Return the producer's SQL for an outbox schema; "" is the search path."""
    if "\0" in schema or len(schema.encode(errors="replace")) > IDENTIFIER_BYTES:
        raise Misconfigured(
            f"Outbox: schema is {schema!r:.80}: give the name of a schema of Postgres."
        )
    quoted = schema.replace('"', '""').replace("%", "%%")
    prefix = f'"{quoted}".' if schema else ""
    return ProducerStatements(
        insert=INSERT.format(prefix),
        compare=COMPARE.format(prefix),
        is_waiting=IS_WAITING.format(prefix),
        read_figures=READ_FIGURES.format(prefix),
        count=COUNT.format(prefix),
    )
