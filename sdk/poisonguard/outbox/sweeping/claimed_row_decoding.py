"""Read rows of an outbox one by one, so that one that cannot be read is one row.

Other programs write the table: columns may be NULL, of another type, or far too large.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from poisonguard.contract import NAME_LIMIT, Cause
from poisonguard.outbox.message import Header, OutboxMessage, digest
from poisonguard.outbox.sweeping.connection import Column
from poisonguard.outbox.sweeping.psycopg_import import adapt, pq, psycopg

BYTEA, BYTEA_ARRAY = 17, 1001
BODY_TYPES = frozenset({BYTEA, 25, 1042, 1043, 114})  # and texts, and json
NAMES = ("producer", "message_id", "topic", "key")
# Names are cut behind the limit, so that a long one is noticed. A database in SQL_ASCII
# cuts bytes, of which a letter has four at most.
CUT = 4 * NAME_LIMIT + 1

OrderKey = tuple[str, str]
UNCHANGED = "a trigger or a rule of the table keeps the row from being changed"

# As they are sent here. Compressed they may be stored in a 255th of that, so those are
# measured; what is too large even so is not unpacked.
HEADERS_SIZE = """(
    CASE WHEN pg_column_compression(entry.headers) IS NULL
           OR pg_column_size(entry.headers) > %(header_bytes)s
         THEN pg_column_size(entry.headers)
         ELSE octet_length(record_send(ROW(entry.headers))) END
)"""
# The most of them that is read. A claim unpacks large ones only where it reads them: in
# few rows, for each counts as much as may be read.
MEASURED_BYTES = 16_384
HEADERS_SHARE = f"""(
    CASE WHEN pg_column_compression(entry.headers) IS NOT NULL
           AND pg_column_size(entry.headers) > {MEASURED_BYTES}
         THEN %(header_bytes)s
         WHEN {HEADERS_SIZE} <= %(header_bytes)s THEN {HEADERS_SIZE}
         ELSE 0 END
)"""
# In the order of `RawRow`.
COLUMNS = f"""
    entry.row_id::bigint,
    left(entry.producer::text, {CUT}), left(entry.message_id::text, {CUT}),
    left(entry.topic::text, {CUT}), left(entry.key::text, {CUT}),
    CASE WHEN octet_length(entry.body) <= %(row_bytes)s THEN entry.body END,
    octet_length(entry.body)::bigint,
    CASE WHEN {HEADERS_SIZE} <= %(header_bytes)s THEN entry.headers END,
    {HEADERS_SIZE}::bigint,
    coalesce(entry.attempts, 0)::bigint, (entry.released_at IS NOT NULL)::text,
    coalesce(entry.due_at > now() + %(most_delay)s, false)::text,
    pg_current_xact_id()::xid::text
"""


class RawRow(NamedTuple):
    """One row as Postgres sent it, or None where a column is NULL."""

    row_id: bytes | None
    producer: bytes | None
    message_id: bytes | None
    topic: bytes | None
    key: bytes | None
    body: bytes | None
    body_size: bytes | None
    headers: bytes | None
    headers_size: bytes | None
    attempts: bytes | None
    is_released: bytes | None
    is_too_late: bytes | None
    version: bytes | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimedRow:
    """A row to send; `version` is the transaction that claimed it, and its mark."""

    row_id: int
    message: OutboxMessage
    digest: bytes
    attempts: int
    is_released: bool
    version: str

    @property
    def identity(self) -> tuple[str, str]:
        return self.message.producer, self.message.message_id

    @property
    def order_key(self) -> OrderKey:
        """Return a row's topic and key, by which messages keep their order."""
        return self.message.topic, self.message.key


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedRow:
    """A row that is not sent, and the reason; `identity` is None without an id.

    `version` is "" where we have not claimed it.
    """

    row_id: int
    cause: Cause
    reason: str
    version: str
    identity: tuple[str, str] | None = None
    is_unchangeable: bool = False


class UnreadableColumn(Exception):
    """A column of one row cannot be what it should be."""


def read(columns: Sequence[Column]) -> Iterator[ClaimedRow | RefusedRow]:
    """Yield each row of a claim's answer, or why it cannot be sent, in order of ids."""
    if not columns:
        return
    types = RowTypes(columns)
    raw = (RawRow(*values) for values in zip(*(c.values for c in columns), strict=True))
    yield from sorted(map(types.read, raw), key=lambda row: row.row_id)


class RowTypes:
    """Read rows of one answer, whose columns may have unexpected types."""

    def __init__(self, columns: Sequence[Column]) -> None:
        oids = RawRow(*(str(column.oid).encode() for column in columns))
        self._body_type = int(oids.body or 0)
        self._headers_type = int(oids.headers or 0)
        self._array = adapt.Transformer().get_loader(BYTEA_ARRAY, pq.Format.BINARY)

    def read(self, raw: RawRow) -> ClaimedRow | RefusedRow:
        row_id, version = _number(raw.row_id), (raw.version or b"").decode()
        if not version:
            return RefusedRow(
                row_id=row_id,
                cause=Cause.REJECTED,
                reason=UNCHANGED,
                version="",
                is_unchangeable=True,
            )
        names: dict[str, str] = {}
        try:
            self._read_names(raw, names)
            message = OutboxMessage(
                **names, body=self._body(raw), headers=self._headers(raw)
            )
            _check_delay(raw)
        except UnreadableColumn as why:
            return RefusedRow(
                row_id=row_id,
                cause=Cause.UNDECODABLE,
                reason=str(why),
                version=version,
                identity=_identity(names),
            )
        return ClaimedRow(
            row_id=row_id,
            message=message,
            digest=digest(message),
            attempts=_number(raw.attempts),
            is_released=raw.is_released == b"true",
            version=version,
        )

    def _read_names(self, raw: RawRow, names: dict[str, str]) -> None:
        """Read an outbox row's producer, message id, topic and key into `names`.

        Raise UnreadableColumn at the first unreadable one; those before it are there.
        """
        for name in NAMES:
            names[name] = _name(name, getattr(raw, name))

    def _body(self, raw: RawRow) -> bytes:
        if raw.body_size is None:
            raise UnreadableColumn("body is NULL")
        if raw.body is None:
            raise UnreadableColumn(
                f"body has {_number(raw.body_size):,} bytes: too many"
            )
        if self._body_type not in BODY_TYPES:
            raise UnreadableColumn("the column body is neither bytea nor text")
        return raw.body

    def _headers(self, raw: RawRow) -> tuple[Header, ...]:
        if raw.headers_size is None:
            raise UnreadableColumn("headers is NULL")
        if raw.headers is None:
            size = _number(raw.headers_size)
            raise UnreadableColumn(f"headers take {size:,} bytes: too many")
        if self._headers_type != BYTEA_ARRAY:
            raise UnreadableColumn("the column headers is not bytea[]")
        return header_pairs(self._parts(raw.headers))

    def _parts(self, value: bytes) -> object:
        try:
            parts: object = self._array.load(value)
        except (psycopg.Error, ValueError, TypeError) as error:
            raise UnreadableColumn(f"headers cannot be read: {error}") from error
        return parts


def header_pairs(parts: object) -> tuple[Header, ...]:
    """Return header names with values from a flat list; raise UnreadableColumn."""
    if not isinstance(parts, list):
        raise UnreadableColumn("headers is no array")
    if len(parts) % 2:
        raise UnreadableColumn(f"headers has {len(parts)} parts: no pairs")
    flat = [part for part in parts if isinstance(part, bytes)]
    if len(flat) != len(parts):
        raise UnreadableColumn("headers holds NULL or an array")
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def _check_delay(raw: RawRow) -> None:
    if raw.is_too_late == b"true":
        raise UnreadableColumn("due_at is too far ahead: a clock was wrong")


def _identity(names: Mapping[str, str]) -> tuple[str, str] | None:
    if "message_id" not in names:
        return None
    return names["producer"], names["message_id"]


def _name(column: str, value: bytes | None) -> str:
    if value is None:
        raise UnreadableColumn(f"{column} is NULL")
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise UnreadableColumn(f"{column} is not UTF-8: {error}") from error
    if len(text) > NAME_LIMIT:
        raise UnreadableColumn(f"{column} has more than {NAME_LIMIT} characters")
    if not text and column != "key":
        raise UnreadableColumn(f"{column} is empty")
    return text


def _number(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "big", signed=True)
