"""Conversion between stream entries as Redis answers them and messages, without loss.

`split_body` and `join_body` keep every entry byte for byte: an entry leaves with the
same fields in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from apps.brokers.adapter_contract import Header

Fields = tuple[Header, ...]


@dataclass(frozen=True, slots=True)
class RedisEntry:
    """One entry of a stream; a deleted or trimmed one has no fields."""

    bookmark: bytes
    fields: Fields


def split_body(fields: Fields, *, body_field: bytes) -> tuple[bytes, Fields]:
    """Return the body of a Redis entry's fields, and the others as headers.

    The body is the first field of that name. Its usual place is before the headers;
    where it stood elsewhere, a header of its name without a value marks the place. A
    body without a value is such a mark itself, which tells it from no body at all.
    """
    index = next((n for n, (name, _) in enumerate(fields) if name == body_field), None)
    if index is None:
        return b"", fields
    mark = (body_field, b"")
    # An entry with a field that looks like the mark needs the mark before it.
    marked = index > 0 or mark in fields
    return fields[index][1], (
        *fields[:index],
        *((mark,) if marked else ()),
        *fields[index + 1 :],
    )


def join_body(body: bytes, headers: Fields, *, body_field: bytes) -> Fields:
    """Join a body and headers to a Redis entry's fields; reverses `split_body`."""
    if not body:
        return headers
    mark = (body_field, b"")
    if mark not in headers:
        return ((body_field, body), *headers)
    index = headers.index(mark)
    return (*headers[:index], (body_field, body), *headers[index + 1 :])


def entries_of(reply: Sequence[tuple[bytes, list[bytes] | None]]) -> list[RedisEntry]:
    """Convert Redis' reply to entries; a deleted entry has no fields."""
    return [RedisEntry(bookmark, _two_by_two(flat or [])) for bookmark, flat in reply]


def _two_by_two(flat: Sequence[bytes]) -> Fields:
    """Pair names and values that alternate in a reply of Redis."""
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def pairs(flat: Sequence[Any]) -> dict[str, Any]:
    """Map decoded names to raw values, which alternate in a reply of Redis."""
    names = (name.decode("utf-8", "replace") for name in flat[::2])
    return dict(zip(names, flat[1::2], strict=True))
