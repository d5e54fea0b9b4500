"""Quarantine rows: first in their table, then reported with their bytes and writer."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from poisonguard.contract import Cause
from poisonguard.outbox.message import Header
from poisonguard.outbox.sweeping.claimed_row_decoding import (
    BYTEA_ARRAY,
    CUT,
    HEADERS_SHARE,
    HEADERS_SIZE,
    RefusedRow,
    UnreadableColumn,
    header_pairs,
)
from poisonguard.outbox.sweeping.connection import Column, OutboxConnection
from poisonguard.outbox.sweeping.psycopg_import import adapt, pq, psycopg
from poisonguard.outbox.sweeping.row_claims import is_of_row

REASON_LIMIT = 1_000
REPORTED_AT_ONCE = 100
# Of the rows of one report; a larger body, or larger headers, are left out of it.
REPORT_BYTES, HEADER_BYTES = 16 * 2**20, 2**20

# A claim counts as an attempt, but what cannot be read was not tried.
MARK = """
UPDATE {outbox} AS entry
SET attempts = greatest(coalesce(entry.attempts, 0) - given.uncounted, 0),
    quarantined_at = now(), quarantine_cause = given.cause,
    quarantine_reason = given.reason, reported_at = NULL,
    claim_token = NULL, claimed_until = NULL
FROM unnest(
    %(row_ids)s::bigint[], %(causes)s::text[], %(reasons)s::text[],
    %(versions)s::text[], %(uncounted)s::int[]
) AS given (row_id, cause, reason, version, uncounted)
WHERE entry.row_id = given.row_id
  AND entry.row_id = ANY (%(row_ids)s::bigint[]) AND {waiting}
  AND (given.version = '' OR entry.xmin::text = given.version)
RETURNING entry.row_id
"""
UNREPORTED = f"""
WITH unreported AS (
    SELECT row_id,
        coalesce(octet_length(entry.body), 0)::bigint + {HEADERS_SHARE} AS size
    FROM {{outbox}} AS entry
    WHERE entry.quarantined_at IS NOT NULL AND entry.reported_at IS NULL
      AND entry.row_id <> ALL (%(passed_by)s::bigint[])
    ORDER BY row_id LIMIT %(rows)s
), fitting AS (
    SELECT row_id, sum(least(size, %(bytes)s)) OVER (ORDER BY row_id) AS total,
        row_number() OVER (ORDER BY row_id) AS place
    FROM unreported
)
"""  # noqa: S608 - made of constants
BY_ID = """
WITH fitting AS (
    SELECT row_id, 0 AS total, 1 AS place
    FROM unnest(%(row_ids)s::bigint[]) AS given (row_id)
)
"""
SELECT = f"""
SELECT entry.row_id::bigint, left(entry.producer::text, {CUT}),
    left(entry.message_id::text, 1000), left(entry.topic::text, {CUT}),
    CASE WHEN octet_length(entry.body) <= %(bytes)s THEN entry.body END,
    octet_length(entry.body)::bigint,
    CASE WHEN octet_length(entry.body) > %(bytes)s THEN sha256(entry.body) END,
    CASE WHEN {HEADERS_SIZE} <= %(header_bytes)s THEN entry.headers END,
    coalesce(entry.attempts, 0)::bigint,
    extract(epoch FROM least(entry.quarantined_at, now()))::text,
    entry.quarantine_cause::text, left(entry.quarantine_reason::text, {REASON_LIMIT}),
    left(entry.writer_user::text, {CUT}), left(entry.writer_application::text, {CUT}),
    split_part(entry.writer_address::text, '/', 1), entry.writer_transaction::text,
    entry.written_at::text
FROM fitting JOIN {{outbox}} AS entry USING (row_id)
WHERE fitting.total <= %(bytes)s OR fitting.place = 1
ORDER BY entry.row_id
"""  # noqa: S608 - made of constants
SELECT_NUMBERS = "SELECT row_id FROM fitting ORDER BY row_id"
MARK_REPORTED = """
UPDATE {outbox} AS entry SET reported_at = now()
WHERE entry.row_id = ANY (%(row_ids)s::bigint[])
  AND entry.quarantined_at IS NOT NULL AND entry.reported_at IS NULL
"""


class Writer(NamedTuple):
    """Who wrote or changed a row last; "" where the table has no trigger for it."""

    user: str
    application: str
    address: str
    transaction: str
    written_at: str

    def __str__(self) -> str:
        if not any(self):
            return "unknown: the table lacks the trigger that notes it"
        return (
            f"user {self.user}, application {self.application or '(no name)'},"
            f" address {self.address or '(local)'}, transaction {self.transaction},"
            f" at {self.written_at}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class QuarantinedRow:
    """A row that is not sent, as it is; texts are "" where they are NULL.

    `body_digest` is the SHA-256 of a body that was too large to read.
    """

    row_id: int
    producer: str
    message_id: str
    topic: str
    body: bytes
    body_size: int
    body_digest: bytes | None
    headers: tuple[Header, ...]
    attempts: int
    quarantined_at: datetime
    cause: Cause
    reason: str
    writer: Writer


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportAnswer:
    """Whether a report was accepted, and otherwise why not."""

    is_accepted: bool
    detail: str = ""


class QuarantineReporter(Protocol):
    """Take quarantined rows into the care of people."""

    def report(self, rows: Sequence[QuarantinedRow]) -> Sequence[ReportAnswer]:
        """Report quarantined rows; return an answer to each, in their order.

        The same row with the same reason counts once. Raises Away where none could be
        reported now, and Refused where none may be.
        """


def mark(connection: OutboxConnection, rows: Sequence[RefusedRow]) -> set[int]:
    """Mark outbox rows as quarantined; return those unchanged since their claim."""
    values = {
        "row_ids": [row.row_id for row in rows],
        "causes": [row.cause.value for row in rows],
        "reasons": [clean(row.reason)[:REASON_LIMIT] for row in rows],
        "versions": [row.version for row in rows],
        "uncounted": [int(row.cause is Cause.UNDECODABLE) for row in rows],
    }
    return {row_id for (row_id,) in connection.execute(MARK, values)}


def unreported_rows(
    connection: OutboxConnection, passed_by: Collection[int]
) -> list[QuarantinedRow]:
    """Read the first quarantined outbox rows that were not reported yet."""
    values = {
        "passed_by": list(passed_by),
        "rows": REPORTED_AT_ONCE,
        "bytes": REPORT_BYTES,
        "header_bytes": HEADER_BYTES,
    }
    try:
        return list(_rows(connection.columns(UNREPORTED + SELECT, values)))
    except psycopg.Error as error:
        if not is_of_row(error):
            raise
    rows = connection.execute(UNREPORTED + SELECT_NUMBERS, values)
    return rows_by_id(connection, [row_id for (row_id,) in rows])


def rows_by_id(
    connection: OutboxConnection, row_ids: Sequence[int]
) -> list[QuarantinedRow]:
    """Read a sweeper's quarantined rows by id; an unreadable one is its number only."""
    return [row for row_id in row_ids for row in _row_by_id(connection, row_id)]


def mark_reported(connection: OutboxConnection, row_ids: Sequence[int]) -> None:
    """Mark quarantined rows as reported to Poisonweb."""
    connection.execute(MARK_REPORTED, {"row_ids": list(row_ids)})


def clean(text: str) -> str:
    """Return a text that Postgres can store and a log line can show."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _row_by_id(connection: OutboxConnection, row_id: int) -> list[QuarantinedRow]:
    values = {
        "row_ids": [row_id],
        "bytes": REPORT_BYTES,
        "header_bytes": HEADER_BYTES,
    }
    try:
        return list(_rows(connection.columns(BY_ID + SELECT, values)))
    except psycopg.Error as error:
        if not is_of_row(error):
            raise
        return [_unreadable(row_id, error)]


def _unreadable(row_id: int, error: Exception) -> QuarantinedRow:
    """Build the stand-in for a row that the sweeper cannot read in its outbox."""
    return QuarantinedRow(
        row_id=row_id,
        producer="",
        message_id="",
        topic="",
        body=b"",
        body_size=0,
        body_digest=None,
        headers=(),
        attempts=0,
        quarantined_at=datetime.fromtimestamp(time.time(), UTC),
        cause=Cause.UNDECODABLE,
        reason=clean(f"it cannot be read: {error}")[:REASON_LIMIT],
        writer=Writer("", "", "", "", ""),
    )


def _rows(columns: Sequence[Column]) -> Iterator[QuarantinedRow]:
    if not columns:
        return
    headers_type = columns[7].oid
    for values in zip(*(column.values for column in columns), strict=True):
        row_id, producer, message_id, topic, body, size, body_digest = values[:7]
        headers, attempts, at, cause, reason, *writer = values[7:]
        yield QuarantinedRow(
            row_id=_number(row_id),
            producer=_text(producer),
            message_id=_text(message_id),
            topic=_text(topic),
            body=body or b"",
            body_size=_number(size),
            body_digest=body_digest,
            headers=_headers(headers, headers_type),
            attempts=_number(attempts),
            quarantined_at=_moment(at),
            cause=_cause(_text(cause)),
            reason=_text(reason),
            writer=Writer(*map(_text, writer)),
        )


def _headers(value: bytes | None, type_oid: int) -> tuple[Header, ...]:
    """Return the header pairs of a row that a sweeper reports; none if unreadable."""
    if value is None or type_oid != BYTEA_ARRAY:
        return ()
    loader = adapt.Transformer().get_loader(BYTEA_ARRAY, pq.Format.BINARY)
    try:
        return header_pairs(loader.load(value))
    except (UnreadableColumn, psycopg.Error, ValueError, TypeError):
        return ()


def _moment(epoch: bytes | None) -> datetime:
    try:
        return datetime.fromtimestamp(float(epoch or b"0"), UTC)
    except (ValueError, OverflowError, OSError):  # a clock was wrong
        return datetime.fromtimestamp(0, UTC)


def _cause(text: str) -> Cause:
    return Cause(text) if text in {*Cause} else Cause.UNKNOWN


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _number(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "big", signed=True)
