"""Convert tables of AMQP 0-9-1, a message's headers, to pairs of bytes and back.

A long string is kept as its bytes. A value of any other type becomes JSON: a type that
JSON does not have is an object whose only key is `$` and its letter on the wire, like
`{"$I": 5}` for a 32-bit number. Inside arrays and tables, JSON's own strings are long
strings (`S`), its numbers have 64 bits (`l`), and true, false and null are `t` and `V`.
So the header that the broker itself adds to a dead letter reads

    x-death  [{"count": 1, "reason": "rejected", "time": {"$T": 1700000000}}]

A value that JSON would not restore byte for byte is `{"$raw": <base64>}`. A long string
that reads like any of these becomes `{"$S": <the string>}`.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator

from apps.brokers.adapter_contract import Header

LONGEST_NAME = 255
DEEPEST = 32

_LENGTH = struct.Struct(">I")
_DECIMAL = struct.Struct(">Bi")
_NUMBERS = {
    letter: struct.Struct(form)
    for letter, form in (
        *(("b", ">b"), ("B", ">B"), ("s", ">h"), ("u", ">H"), ("I", ">i")),
        *(("i", ">I"), ("l", ">q"), ("L", ">q"), ("T", ">Q"), ("f", ">f"), ("d", ">d")),
    )
}
_SIZES = {letter: form.size for letter, form in _NUMBERS.items()} | {
    "t": 1,
    "V": 0,
    "D": _DECIMAL.size,
}
_HAVE_LENGTH = frozenset("SxAF")
# Errors of parsing a text that stands for no value.
_NOT_OURS = (ValueError, TypeError, struct.error, RecursionError)


class AmqpMalformed(ValueError):
    """The bytes are no AMQP table, or the value cannot be in one."""


def decode(table: bytes) -> list[Header]:
    """Decode RabbitMQ's table of headers to pairs of bytes; raise `AmqpMalformed`."""
    return [(name, _to_text(value)) for name, value in _split_table(table)]


def encode(header: Header) -> bytes:
    """Encode a name and its text as an entry of an AMQP table; reverses `decode`."""
    name, text = header
    if len(name) > LONGEST_NAME:
        raise AmqpMalformed(
            f"a header's name has {len(name)} bytes, and 255 is the most"
        )
    value = _parse_value(text)
    return bytes([len(name)]) + name + (_long_string(text) if value is None else value)


def _to_text(value: bytes) -> bytes:
    """Return an AMQP value as the text of a header: itself, or as JSON."""
    if value[:1] != b"S":
        return _as_json(value)
    text = value[5:]
    return text if _parse_value(text) is None else _escape(text)


def _parse_value(text: bytes) -> bytes | None:
    """Parse the AMQP value that a header stands for; None where it is just text.

    Only the exact text that `_to_text` makes of a value stands for that value.
    """
    if text[:1] not in {b"[", b"{"}:
        return None
    try:
        document = json.loads(text)
        if isinstance(document, dict) and document.keys() == {"$S"}:
            return _encode_unescaped(document["$S"].encode(), text)
        value = _encode_value(document)
    except (*_NOT_OURS, AttributeError):
        return None
    return value if _as_json(value) == text else None


def _escape(text: bytes) -> bytes:
    """Write as JSON a header's text that would otherwise be read as another value."""
    return _to_json({"$S": text.decode()})


def _encode_unescaped(inner: bytes, text: bytes) -> bytes | None:
    """Encode as AMQP the text that `_escape` wrote; None if it needed no escape."""
    needed = _parse_value(inner) is not None and _escape(inner) == text
    return _long_string(inner) if needed else None


def _as_json(value: bytes) -> bytes:
    """Convert an AMQP value but a long string to JSON, or to its raw bytes."""
    try:
        plain = _to_plain(value, deep=0)
        # Only values in an array or a table may omit their letter.
        bare = not isinstance(plain, list | dict) or not plain
        json_text = _to_json({f"${chr(value[0])}": plain} if bare else plain)
        if _encode_value(json.loads(json_text)) == value:
            return json_text
    except _NOT_OURS:
        # JSON cannot express it: not UTF-8, not a number, or too deep.
        return _to_raw_json(value)
    return _to_raw_json(value)


def _to_raw_json(value: bytes) -> bytes:
    """Write the bytes of an AMQP value in base64, as JSON."""
    return _to_json({"$raw": base64.b64encode(value).decode()})


def _to_plain(value: bytes, *, deep: int) -> object:
    """Convert an AMQP value to what JSON can hold; raise AmqpMalformed."""
    if deep > DEEPEST:
        raise AmqpMalformed("it is too deep")
    if value[:1] == b"A":
        return [_to_plain(one, deep=deep + 1) for one in _split_array(value[5:])]
    if value[:1] == b"F":
        entries = _split_table(value[5:])
        return {name.decode(): _to_plain(one, deep=deep + 1) for name, one in entries}
    return _scalar_to_plain(chr(value[0]), value[1:])


def _scalar_to_plain(letter: str, rest: bytes) -> object:
    """Convert an AMQP value of this type's letter to what JSON can hold."""
    match letter:
        case "S":
            return rest[4:].decode()
        case "t":
            return bool(rest[0])
        case "V":
            return None
        case "x":
            return {"$x": base64.b64encode(rest[4:]).decode()}
        case "D":
            return {"$D": list(_DECIMAL.unpack(rest))}
        case _:
            (number,) = _NUMBERS[letter].unpack(rest)
            return number if letter == "l" else {f"${letter}": number}


def _encode_value(plain: object) -> bytes:
    """Encode as AMQP a value that `_to_plain` made."""
    if isinstance(plain, list):
        return b"A" + _with_length(b"".join(map(_encode_value, plain)))
    if not isinstance(plain, dict):
        return _encode_scalar(plain)
    if len(plain) == 1 and next(iter(plain))[:1] == "$":
        ((name, inner),) = plain.items()
        return _encode_tagged(name[1:], inner)
    return b"F" + _with_length(b"".join(_encode_entry(*item) for item in plain.items()))


def _encode_scalar(plain: object) -> bytes:
    """Encode a text, boolean, null or number as AMQP."""
    match plain:
        case str():
            return _long_string(plain.encode())
        case bool():
            return b"t" + bytes([plain])
        case None:
            return b"V"
        case int():
            return b"l" + _NUMBERS["l"].pack(plain)
        case _:
            raise AmqpMalformed("a number without its type")


def _encode_entry(name: str, plain: object) -> bytes:
    """Encode a name and its value as an entry of an AMQP table."""
    # bytes() raises ValueError where the name is too long for one byte.
    return bytes([len(name.encode())]) + name.encode() + _encode_value(plain)


def _encode_tagged(letter: str, inner: object) -> bytes:
    """Encode to AMQP what JSON holds under the letter of its type, such as `$T`."""
    match letter, inner:
        case "raw", str():
            return _require_one_value(base64.b64decode(inner, validate=True))
        case "x", str():
            return b"x" + _with_length(base64.b64decode(inner, validate=True))
        case "D", [scale, number]:
            return b"D" + _DECIMAL.pack(scale, number)
        case "l" | "t" | "V" | "A" | "F", _:
            return _encode_value(inner)
        case _:
            return letter.encode() + _NUMBERS[_checked_letter(letter)].pack(inner)


def _checked_letter(letter: str) -> str:
    """Return the letter of an AMQP number; raise AmqpMalformed for another letter."""
    if letter not in _NUMBERS:
        raise AmqpMalformed(f"there is no type {letter}")
    return letter


def _require_one_value(value: bytes) -> bytes:
    """Return the bytes; raise AmqpMalformed unless they are one AMQP value."""
    if _end_of_value(value, 0) != len(value):
        raise AmqpMalformed("more than a value")
    return value


def _split_table(table: bytes) -> Iterator[Header]:
    """Yield the name and the encoded value of each entry of an AMQP table."""
    offset = 0
    while offset < len(table):
        start = offset + 1 + table[offset]
        end = _end_of_value(table, start)
        yield table[offset + 1 : start], table[start:end]
        offset = end


def _split_array(array: bytes) -> Iterator[bytes]:
    """Yield each encoded value of an AMQP array."""
    offset = 0
    while offset < len(array):
        end = _end_of_value(array, offset)
        yield array[offset:end]
        offset = end


def _end_of_value(data: bytes, offset: int) -> int:
    """Return where the AMQP value that begins here with its letter ends."""
    letter = chr(data[offset]) if offset < len(data) else ""
    end = offset + 1 + _SIZES.get(letter, 0)
    if letter in _HAVE_LENGTH and end + 4 <= len(data):
        end += 4 + _LENGTH.unpack_from(data, end)[0]
    elif letter not in _SIZES:
        raise AmqpMalformed(f"there is no type {letter!r}")
    if end > len(data):
        raise AmqpMalformed("it ends in the middle of a value")
    return end


def _long_string(text: bytes) -> bytes:
    """Encode a text as AMQP's long string."""
    return b"S" + _with_length(text)


def _with_length(content: bytes) -> bytes:
    """Put AMQP's length, four bytes, before the bytes."""
    return _LENGTH.pack(len(content)) + content


def _to_json(plain: object) -> bytes:
    """Write an AMQP value's JSON in UTF-8, with any character; raise for a NaN."""
    return json.dumps(plain, ensure_ascii=False, allow_nan=False).encode()
