"""Claim rows for one window, and give them back.

A claim is `due_at` in the future: what a dead sweeper has claimed is due again by
itself. Rows of one topic and key keep their order: while an earlier one that was tried
is not due, the others wait. One that was not tried has a date of its own, and takes its
place in the order when that comes. An earlier row without a key may be alone in its
trouble with the broker (`passed_by`): then the others do not wait for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from poisonguard.outbox.sweeping.claimed_row_decoding import (
    COLUMNS,
    HEADERS_SHARE,
    ClaimedRow,
    RawRow,
    RefusedRow,
    read,
)
from poisonguard.outbox.sweeping.connection import Column, OutboxConnection
from poisonguard.outbox.sweeping.psycopg_import import psycopg
from poisonguard.outbox.sweeping.settings import SweeperSettings

MOST_ATTEMPTS = 2**31 - 2
IS_DUE = """(
    entry.due_at IS NULL OR entry.due_at <= now()
    OR entry.due_at > now() + %(most_delay)s
)"""
# As much of a row as it is read.
SIZE = f"""(
    1000
    + CASE WHEN octet_length(entry.body) <= %(row_bytes)s
           THEN octet_length(entry.body) ELSE 0 END
    + {HEADERS_SHARE}
)::bigint"""
FENCE_IS_OURS = "EXISTS (SELECT FROM {sweeper} WHERE fence = %(fence)s)"
# NOT IN is hashed; a join would compare each pair, for few are expected in `put_off`.
# `put_off` has two parts, because an OR of both would read all that waits; its order
# has the index of due_at read, also in a table without statistics.
NEXT = f"""
WITH put_off AS MATERIALIZED (
    SELECT topic, key, min(row_id) AS row_id FROM (
        (SELECT coalesce(topic::text, '') AS topic, coalesce(key::text, '') AS key,
            row_id
        FROM {{outbox}} AS entry
        WHERE {{waiting}} AND row_id <> ALL (%(left_out)s::bigint[])
          AND due_at > now() AND due_at <= now() + %(most_delay)s
          AND coalesce(attempts, 0) > 0
          AND (row_id <> ALL (%(passed_by)s::bigint[]) OR key::text <> '')
        ORDER BY due_at)
        UNION ALL
        SELECT coalesce(topic::text, ''), coalesce(key::text, ''), row_id
        FROM {{outbox}} AS entry
        WHERE {{waiting}} AND row_id <> ALL (%(left_out)s::bigint[])
          AND row_id = ANY (%(passed_by)s::bigint[]) AND key::text <> ''
    ) AS earlier
    GROUP BY 1, 2
), next AS (
    SELECT row_id, {SIZE} AS size FROM {{outbox}} AS entry
    WHERE {{waiting}} AND {IS_DUE} AND {FENCE_IS_OURS}
      AND row_id <> ALL (%(left_out)s::bigint[])
      AND row_id <> ALL (%(passed_by)s::bigint[])
      AND (%(behind)s::bigint IS NULL OR row_id > %(behind)s)
      AND coalesce(entry.topic::text, '') <> ALL (%(slowed_topics)s::text[])
      AND (
          (coalesce(topic::text, ''), coalesce(key::text, ''))
              NOT IN (SELECT topic, key FROM put_off)
          OR row_id < (
              SELECT put_off.row_id FROM put_off
              WHERE put_off.topic = coalesce(entry.topic::text, '')
                AND put_off.key = coalesce(entry.key::text, '')
          )
      )
    ORDER BY row_id LIMIT %(rows)s FOR UPDATE OF entry SKIP LOCKED
), sized AS (
    SELECT row_id, size, sum(size) OVER (ORDER BY row_id) AS total FROM next
), fitting AS (
    SELECT row_id FROM sized WHERE total <= %(window_bytes)s OR total = size
)
"""  # noqa: S608 - made of constants
BY_ID = f"""
WITH fitting AS (
    SELECT row_id FROM {{outbox}} AS entry
    WHERE row_id = ANY (%(row_ids)s::bigint[]) AND {{waiting}} AND {FENCE_IS_OURS}
      AND coalesce(entry.topic::text, '') <> ALL (%(slowed_topics)s::text[])
    FOR UPDATE OF entry SKIP LOCKED
)
"""  # noqa: S608
# A trigger of others can keep a row from being changed: then only its number comes. A
# join would compare each pair, for `fitting` is expected to be small; this is hashed.
CLAIM = f"""
, claimed ({", ".join(RawRow._fields)}) AS (
UPDATE {{outbox}} AS entry
SET claim_token = %(token)s,
    claimed_until = now() + %(claim_seconds)s * interval '1 second',
    due_at = CASE WHEN entry.due_at > now() + %(most_delay)s THEN entry.due_at
                  ELSE now() + %(claim_seconds)s * interval '1 second' END,
    attempts = least(coalesce(entry.attempts, 0), {MOST_ATTEMPTS}) + 1
FROM fitting
WHERE entry.row_id = fitting.row_id
RETURNING {COLUMNS}
)
SELECT * FROM claimed
UNION ALL
SELECT row_id::bigint, {", ".join(["NULL"] * (len(RawRow._fields) - 1))} FROM fitting
WHERE (row_id IN (SELECT row_id FROM claimed)) IS NOT TRUE
"""  # noqa: S608
LIST_NEXT = f"{NEXT} SELECT row_id FROM fitting ORDER BY row_id"  # noqa: S608
GIVE_BACK = """
UPDATE {outbox} AS entry
SET claim_token = NULL, claimed_until = NULL,
    due_at = now() + given.seconds * interval '1 second',
    attempts = greatest(entry.attempts - given.uncounted, 0)
FROM unnest(%(row_ids)s::bigint[], %(seconds)s::float8[], %(uncounted)s::int[])
    AS given (row_id, seconds, uncounted)
WHERE entry.row_id = given.row_id
  AND entry.row_id = ANY (%(row_ids)s::bigint[]) AND entry.claim_token = %(token)s
  AND {waiting}
"""
GIVE_BACK_ALL = """
UPDATE {outbox} AS entry
SET claim_token = NULL, claimed_until = NULL, due_at = now()
WHERE entry.claim_token = %(token)s AND entry.due_at > now() AND {waiting}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReturnedRow:
    """A claimed row that was not sent, and for how long it then waits.

    `is_counted`: the attempt was one of the row's own.
    """

    row: ClaimedRow
    seconds: float = 0.0
    is_counted: bool = True

    @property
    def row_id(self) -> int:
        return self.row.row_id


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimOrder:
    """What to claim, for which window, under which fence."""

    token: UUID
    fence: int
    rows: int
    left_out: Collection[int] = ()
    passed_by: Collection[int] = ()
    slowed_topics: Collection[str] = ()
    behind: int | None = None  # claim only rows with higher numbers


class Claims:
    """The claiming statements of one connection."""

    def __init__(self, connection: OutboxConnection, settings: SweeperSettings):
        self._connection = connection
        self._limits: dict[str, object] = {
            "row_bytes": settings.row_bytes,
            "header_bytes": settings.header_bytes,
            "window_bytes": settings.window_bytes,
            "most_delay": settings.most_delay,
            "claim_seconds": settings.claim_seconds,
        }

    def claim_next(self, order: ClaimOrder) -> list[ClaimedRow | RefusedRow]:
        """Claim the first due rows of an outbox for a window."""
        return self._read(self._connection.columns(NEXT + CLAIM, self._values(order)))

    def claim_by_id(
        self, row_ids: Sequence[int], order: ClaimOrder
    ) -> list[ClaimedRow | RefusedRow]:
        """Claim the outbox rows of these ids, as far as they wait."""
        values = self._values(order) | {"row_ids": list(row_ids)}
        return self._read(self._connection.columns(BY_ID + CLAIM, values))

    def list_next(self, order: ClaimOrder) -> list[int]:
        """List the outbox rows that `claim_next` would claim, without reading them."""
        rows = self._connection.execute(LIST_NEXT, self._values(order))
        return [row_id for (row_id,) in rows]

    def give_back(self, token: UUID, rows: Iterable[ReturnedRow]) -> None:
        """End the claims of these rows of a window; each is due after its `seconds`."""
        listed = list(rows)
        values = {
            "token": token,
            "row_ids": [each.row_id for each in listed],
            "seconds": [each.seconds for each in listed],
            "uncounted": [int(not each.is_counted) for each in listed],
        }
        self._connection.execute(GIVE_BACK, values)

    def give_back_all(self, token: UUID) -> None:
        """End all claims of a sweeper's window whose outbox rows it has not read."""
        self._connection.execute(GIVE_BACK_ALL, {"token": token})

    def _values(self, order: ClaimOrder) -> dict[str, object]:
        return self._limits | {
            "token": order.token,
            "fence": order.fence,
            "rows": order.rows,
            "left_out": list(order.left_out),
            "passed_by": list(order.passed_by),
            "slowed_topics": list(order.slowed_topics),
            "behind": order.behind,
        }

    def _read(self, columns: Sequence[Column]) -> list[ClaimedRow | RefusedRow]:
        return list(read(columns))


# Errors of the connection, of the whole table, of rights, or of who else is at work:
# one row is not their reason. SQL's classes of errors.
OF_ALL_ROWS = frozenset({"08", "25", "28", "3D", "3F", "40", "42", "53", "55", "57"})


def is_of_row(error: Exception) -> bool:
    """Tell whether an error of Postgres may be due to one row of a statement."""
    if not isinstance(error, psycopg.Error) or error.sqlstate is None:
        return False
    return error.sqlstate[:2] not in OF_ALL_ROWS
