"""The properties of an AMQP message as our headers and back, byte for byte.

First come its properties, in AMQP's order and under `amqp.` and their name, numbers in
decimal; then its own headers (`amqp_table`), in their order:

    amqp.content_type  application/json
    amqp.message_id    0195...
    x-death            [{"count": 1, ...}]

A header of a message's own that would be taken for a property stands behind the mark,
`amqp.headers` without a value; so does the end of a table without any.

What steers the broker never leaves again. Every message leaves persistent, so its
delivery mode is not even kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from apps.brokers.adapters.rabbitmq import amqp_table as tables
from apps.brokers.adapters.rabbitmq.amqp_table import AmqpMalformed
from apps.brokers.ports import Header

PREFIX = b"amqp."
MARK: Header = (PREFIX + b"headers", b"")
# What cannot be read as properties at all, as it is: seen, but never sent.
UNREAD = PREFIX + b"properties"
DELIVERY_COUNT = b"x-delivery-count"
# CC and BCC are further recipients, and the broker makes others of the rest: a message
# that expires at once is confirmed and gone, one of another user breaks the channel.
RESERVED = frozenset(
    {b"CC", b"BCC", DELIVERY_COUNT, PREFIX + b"expiration", PREFIX + b"user_id"}
)

_FLAGS = struct.Struct(">H")
_LENGTH = struct.Struct(">I")
_TIMESTAMP = struct.Struct(">Q")
_NO_PROPERTY = 0b11
_PERSISTENT = b"\2"


@dataclass(frozen=True, slots=True)
class _Property:
    name: bytes
    flag: int
    kind: str


_IN_ORDER = tuple(
    _Property(PREFIX + name, 1 << 15 - index, kind)
    for index, (name, kind) in enumerate(
        (
            (b"content_type", "text"),
            (b"content_encoding", "text"),
            (b"headers", "table"),
            (b"delivery_mode", "byte"),
            (b"priority", "byte"),
            (b"correlation_id", "text"),
            (b"reply_to", "text"),
            (b"expiration", "text"),
            (b"message_id", "text"),
            (b"timestamp", "time"),
            (b"type", "text"),
            (b"user_id", "text"),
            (b"app_id", "text"),
            (b"cluster_id", "text"),
        )
    )
)
_HEADERS, _DELIVERY_MODE = _IN_ORDER[2], _IN_ORDER[3]
_INDEXES = {
    one.name: index
    for index, one in enumerate(_IN_ORDER)
    if one not in {_HEADERS, _DELIVERY_MODE}
}


def decode(properties: bytes) -> tuple[Header, ...]:
    """Give the properties of a message, with their flags, as headers."""
    try:
        values = dict(_fields(properties))
        table = values.pop(_HEADERS.name, None)
        entries = None if table is None else tables.decode(table)
    except (AmqpMalformed, struct.error, IndexError):
        return ((UNREAD, properties),)
    values.pop(_DELIVERY_MODE.name, None)
    pairs = tuple(values.items())
    own = [entry for entry in entries or () if entry[0] != DELIVERY_COUNT]
    # No table, or one that holds nothing but what the broker itself put there.
    if entries is None or (entries and not own):
        return pairs
    return (*pairs, *((MARK,) if _needs_mark(own, behind=pairs) else ()), *own)


def encode(headers: Sequence[Header]) -> bytes:
    """Give headers as the properties of a persistent message, less the reserved ones.

    Raises `AmqpMalformed` for what no AMQP message can carry.
    """
    pairs, entries = _split(headers)
    values = {name: value for name, value in pairs if name not in RESERVED}
    if entries is None:
        return _packed(values, None)
    own = [tables.encode(entry) for entry in entries if entry[0] not in RESERVED]
    return _packed(values, b"".join(own) if own or not entries else None)


def message_id(headers: Sequence[Header]) -> bytes:
    """Give the name that its producer gave a message, b"" where it gave none."""
    key = PREFIX + b"message_id"
    pairs, _ = _split(headers)
    return next((value for name, value in pairs if name == key), b"")


def _split(headers: Sequence[Header]) -> tuple[Sequence[Header], list[Header] | None]:
    """Tell a message's properties from its own headers; None where it has no table."""
    if headers and headers[0][0] == UNREAD and decode(headers[0][1]) == (headers[0],):
        raise AmqpMalformed("its properties could not be read, so they cannot be sent")
    count = 0
    while count < len(headers) and _continues(headers[count], behind=headers[:count]):
        count += 1
    pairs, rest = headers[:count], list(headers[count:])
    if rest[:1] == [MARK] and _needs_mark(rest[1:], behind=pairs):
        return pairs, rest[1:]
    return pairs, rest or None


def _needs_mark(entries: Sequence[Header], *, behind: Sequence[Header]) -> bool:
    first = next((entry for entry in entries if entry != MARK), None)
    return first is None or _continues(first, behind=behind)


def _continues(header: Header, *, behind: Sequence[Header]) -> bool:
    """Tell whether this is the next of the properties, and no header of its own."""
    index = _INDEXES.get(header[0], -1)
    last = _INDEXES[behind[-1][0]] if behind else -1
    return index > last and _fits(header[1], _IN_ORDER[index].kind)


def _fits(value: bytes, kind: str) -> bool:
    if kind == "text":
        return len(value) <= tables.LONGEST_NAME
    largest = 2**64 - 1 if kind == "time" else 255
    digits = value.isdigit() and len(value) <= len(str(largest))
    return digits and int(value) <= largest and b"%d" % int(value) == value


def _fields(data: bytes) -> Iterator[Header]:
    (flags,) = _FLAGS.unpack_from(data)
    offset = _FLAGS.size
    for one in _IN_ORDER:
        if flags & one.flag:
            value, offset = _READERS[one.kind](data, offset)
            yield one.name, value
    # Behind the properties of today there may be more flags, and more properties.
    if flags & _NO_PROPERTY or offset != len(data):
        raise AmqpMalformed("there is more than AMQP 0-9-1 knows")


def _packed(values: Mapping[bytes, bytes], table: bytes | None) -> bytes:
    flags, pieces = 0, list[bytes]()
    for one in _IN_ORDER:
        piece = _piece(one, values, table)
        if piece is not None:
            flags |= one.flag
            pieces.append(piece)
    return _FLAGS.pack(flags) + b"".join(pieces)


def _piece(
    one: _Property, values: Mapping[bytes, bytes], table: bytes | None
) -> bytes | None:
    if one is _DELIVERY_MODE:
        return _PERSISTENT
    if one is _HEADERS:
        return None if table is None else _LENGTH.pack(len(table)) + table
    value = values.get(one.name)
    return None if value is None else _WRITERS[one.kind](value)


def _read_text(data: bytes, offset: int) -> tuple[bytes, int]:
    return _cut(data, offset + 1, data[offset])


def _read_table(data: bytes, offset: int) -> tuple[bytes, int]:
    (length,) = _LENGTH.unpack_from(data, offset)
    return _cut(data, offset + _LENGTH.size, length)


def _read_byte(data: bytes, offset: int) -> tuple[bytes, int]:
    return b"%d" % data[offset], offset + 1


def _read_time(data: bytes, offset: int) -> tuple[bytes, int]:
    (moment,) = _TIMESTAMP.unpack_from(data, offset)
    return b"%d" % moment, offset + _TIMESTAMP.size


def _cut(data: bytes, start: int, length: int) -> tuple[bytes, int]:
    if start + length > len(data):
        raise AmqpMalformed("it ends in the middle of a property")
    return data[start : start + length], start + length


_READERS = {
    "text": _read_text,
    "table": _read_table,
    "byte": _read_byte,
    "time": _read_time,
}
_WRITERS: Mapping[str, Callable[[bytes], bytes]] = {
    "text": lambda value: bytes([len(value)]) + value,
    "byte": lambda value: bytes([int(value)]),
    "time": lambda value: _TIMESTAMP.pack(int(value)),
}
