"""Convert the properties of an AMQP message to our headers and back, byte for byte.

First come its properties in AMQP's order, named `amqp.` and their name, numbers in
decimal; then its own headers (`amqp_table`), in their order:

    amqp.content_type  application/json
    amqp.message_id    0195...
    x-death            [{"count": 1, ...}]

The mark, `amqp.headers` without a value, precedes own headers where the first of them
looks like a property, and stands for an empty table.

Properties that steer the broker are never sent. Every message is sent persistent, so
its delivery mode is not stored.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from apps.brokers.adapter_contract import Header
from apps.brokers.adapters.rabbitmq import amqp_table as tables
from apps.brokers.adapters.rabbitmq.amqp_table import AmqpMalformed

PREFIX = b"amqp."
MARK: Header = (PREFIX + b"headers", b"")
# Properties that cannot be parsed, as bytes: shown, but never sent.
UNREAD = PREFIX + b"properties"
DELIVERY_COUNT = b"x-delivery-count"
# CC and BCC add recipients, and the others change what the broker does: it confirms and
# drops a message that expires at once, and closes the channel over one of another user.
RESERVED = frozenset(
    {b"CC", b"BCC", DELIVERY_COUNT, PREFIX + b"expiration", PREFIX + b"user_id"}
)

_MESSAGE_ID = PREFIX + b"message_id"
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
    """Convert a message's encoded AMQP properties to headers."""
    try:
        values = dict(_decode_each(properties))
        table = values.pop(_HEADERS.name, None)
        entries = None if table is None else tables.decode(table)
    except (AmqpMalformed, struct.error, IndexError):
        return ((UNREAD, properties),)
    values.pop(_DELIVERY_MODE.name, None)
    pairs = tuple(values.items())
    own = [entry for entry in entries or () if entry[0] != DELIVERY_COUNT]
    # There is no table, or only the broker itself put entries into it.
    if entries is None or (entries and not own):
        return pairs
    return (*pairs, *((MARK,) if _needs_mark(own, behind=pairs) else ()), *own)


def encode(headers: Sequence[Header]) -> bytes:
    """Convert headers to the properties of a persistent message, less the reserved.

    Raises `AmqpMalformed` for what no AMQP message can carry.
    """
    pairs, entries = _split_own(headers)
    values = {name: value for name, value in pairs if name not in RESERVED}
    if entries is None:
        return _pack(values, None)
    own = [tables.encode(entry) for entry in entries if entry[0] not in RESERVED]
    return _pack(values, b"".join(own) if own or not entries else None)


def message_id(headers: Sequence[Header]) -> bytes:
    """Return the AMQP message id that the producer of these headers set, or b""."""
    pairs, _ = _split_own(headers)
    return next((value for name, value in pairs if name == _MESSAGE_ID), b"")


def with_message_id(headers: Sequence[Header], message_id: bytes) -> tuple[Header, ...]:
    """Put the header `message_id` first, and move other properties before own headers.

    So `encode` takes each for a property: the first of its name, if AMQP can carry it.
    """
    by_name = {
        name: (name, value)
        for name, value in reversed(headers)
        if name in _INDEXES and _fits(value, _IN_ORDER[_INDEXES[name]].kind)
    }
    by_name[_MESSAGE_ID] = (_MESSAGE_ID, message_id)
    pairs = [by_name[name] for name in _INDEXES if name in by_name]
    own = [h for h in headers if h not in pairs and h[0] != _MESSAGE_ID]
    return (*pairs, *own)


def _split_own(
    headers: Sequence[Header],
) -> tuple[Sequence[Header], list[Header] | None]:
    """Split a message's headers into AMQP properties and the message's own headers.

    The latter are None where the message has no table of headers. Raises AmqpMalformed
    for properties that could not be read.
    """
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
    """Tell whether only a mark shows where an AMQP message's own headers begin."""
    first = next((entry for entry in entries if entry != MARK), None)
    return first is None or _continues(first, behind=behind)


def _continues(header: Header, *, behind: Sequence[Header]) -> bool:
    """Tell whether a header is the next AMQP property, not an own header."""
    index = _INDEXES.get(header[0], -1)
    last = _INDEXES[behind[-1][0]] if behind else -1
    return index > last and _fits(header[1], _IN_ORDER[index].kind)


def _fits(value: bytes, kind: str) -> bool:
    """Tell whether AMQP can carry a value unchanged as this kind of property."""
    if kind == "text":
        return len(value) <= tables.LONGEST_NAME
    largest = 2**64 - 1 if kind == "time" else 255
    digits = value.isdigit() and len(value) <= len(str(largest))
    return digits and int(value) <= largest and b"%d" % int(value) == value


def _decode_each(data: bytes) -> Iterator[Header]:
    """Yield each property in encoded AMQP properties; raise AmqpMalformed."""
    (flags,) = _FLAGS.unpack_from(data)
    offset = _FLAGS.size
    for one in _IN_ORDER:
        if flags & one.flag:
            value, offset = _READERS[one.kind](data, offset)
            yield one.name, value
    # A later AMQP may have more flags, and more properties.
    if flags & _NO_PROPERTY or offset != len(data):
        raise AmqpMalformed("there is more than AMQP 0-9-1 knows")


def _pack(values: Mapping[bytes, bytes], table: bytes | None) -> bytes:
    """Encode AMQP properties and a table of headers, behind their flags."""
    flags, pieces = 0, list[bytes]()
    for one in _IN_ORDER:
        piece = _encode_one(one, values, table)
        if piece is not None:
            flags |= one.flag
            pieces.append(piece)
    return _FLAGS.pack(flags) + b"".join(pieces)


def _encode_one(
    one: _Property, values: Mapping[bytes, bytes], table: bytes | None
) -> bytes | None:
    """Encode an AMQP property; None if the message does not have it."""
    if one is _DELIVERY_MODE:
        return _PERSISTENT
    if one is _HEADERS:
        return None if table is None else _LENGTH.pack(len(table)) + table
    value = values.get(one.name)
    return None if value is None else _WRITERS[one.kind](value)


def _read_text(data: bytes, offset: int) -> tuple[bytes, int]:
    """Read AMQP's short text; return it, and where the next property begins."""
    return _cut(data, offset + 1, data[offset])


def _read_table(data: bytes, offset: int) -> tuple[bytes, int]:
    """Read AMQP's table of headers; return its bytes and the next one's start."""
    (length,) = _LENGTH.unpack_from(data, offset)
    return _cut(data, offset + _LENGTH.size, length)


def _read_byte(data: bytes, offset: int) -> tuple[bytes, int]:
    """Decode an AMQP byte to decimal digits.

    Returns them, and where the next property begins.
    """
    return b"%d" % data[offset], offset + 1


def _read_time(data: bytes, offset: int) -> tuple[bytes, int]:
    """Decode an AMQP time to decimal digits.

    Returns them, and where the next property begins.
    """
    (moment,) = _TIMESTAMP.unpack_from(data, offset)
    return b"%d" % moment, offset + _TIMESTAMP.size


def _cut(data: bytes, start: int, length: int) -> tuple[bytes, int]:
    """Cut bytes from AMQP data; return them and their end, or raise AmqpMalformed."""
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
