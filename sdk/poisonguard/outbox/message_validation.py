"""Checks of what an application puts: values, or errors with a remedy."""

from __future__ import annotations

import reprlib
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import UUID, uuid4

from poisonguard.contract import (
    HEADERS_LIMIT,
    NAME_LIMIT,
    is_name,
)
from poisonguard.errors import Refused
from poisonguard.outbox.limits import MOST_DELAY
from poisonguard.outbox.message import Header

# Of names and values together. Brokers take much less.
HEADER_BYTES = 2**20

HeaderValue = str | bytes
Headers = (
    Mapping[str, HeaderValue]
    | Mapping[bytes, HeaderValue]
    | Iterable[tuple[HeaderValue, HeaderValue]]
)
Body = bytes | bytearray | memoryview


def check_name(field: str, value: object) -> str:
    """Return a valid name of a producer or topic; raise Refused for another."""
    if not isinstance(value, str):
        raise _wrong(field, value, "give a str")
    if not value.strip() or len(value) > NAME_LIMIT:
        raise _wrong(field, value, f"give 1 to {NAME_LIMIT} characters")
    if not is_name(value):
        raise _wrong(field, value, UNCLEAN)
    return value


def check_key(value: object) -> str:
    """Return an outbox message's valid key, or ""; raise Refused for another."""
    return "" if value == "" else check_name("key", value)


def check_message_id(value: object) -> str:
    """Return a message's id as text, a new id for None; raise Refused for another."""
    if value is None:
        return str(uuid4())
    return check_name("message_id", str(value) if isinstance(value, UUID) else value)


def check_body(value: object, *, topic: str, max_body: int) -> bytes:
    """Return an outbox message's body, which its topic takes; else raise Refused."""
    if not isinstance(value, Body):
        raise _wrong("body", value, "give bytes, such as json.dumps(...).encode()")
    size = memoryview(value).nbytes
    if size > max_body:
        raise Refused(
            f"Outbox: body has {size:,} bytes, and topic {topic!r} takes"
            f" {max_body:,}: send less, such as a reference, or correct max_body in"
            " OutboxLimits."
        )
    return bytes(value)


def check_headers(value: object) -> tuple[Header, ...]:
    """Return an outbox message's headers as byte pairs; else raise Refused."""
    if isinstance(value, Mapping):
        value = value.items()
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise _wrong("headers", value, "give a mapping, or pairs of name and value")
    pairs = tuple(islice(value, HEADERS_LIMIT + 1))
    if len(pairs) > HEADERS_LIMIT:
        raise Refused(
            f"Outbox: headers has more than {HEADERS_LIMIT:,} headers: put data into"
            " the body."
        )
    headers = tuple(_header(number, pair) for number, pair in enumerate(pairs))
    size = sum(len(name) + len(content) for name, content in headers)
    if size > HEADER_BYTES:
        raise Refused(
            f"Outbox: headers has {size:,} bytes, and {HEADER_BYTES:,} are allowed:"
            " put data into the body."
        )
    return headers


def check_due(value: object) -> datetime | None:
    """Return the time before which a message is not sent; raise Refused for another."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise _wrong("due_at", value, "give a datetime, or None to send at once")
    if value.utcoffset() is None:
        raise _wrong("due_at", value, "it has no time zone: give one")
    if value.timestamp() - time.time() > MOST_DELAY.total_seconds():
        raise _wrong("due_at", value, f"give at most {MOST_DELAY.days} days from now")
    return value


def _header(number: int, pair: Any) -> Header:
    """Return one header of an outbox message as bytes; else raise Refused."""
    try:
        name, content = pair
    except (TypeError, ValueError):
        raise _wrong(f"headers[{number}]", pair, "give a name and a value") from None
    if name in ("", b""):
        raise _wrong(f"headers[{number}]", pair, "give the name at least a letter")
    return _header_part(number, name), _header_part(number, content)


def _header_part(number: int, part: object) -> bytes:
    """Encode the name or value of an outbox message's header; raise Refused."""
    if isinstance(part, bytes):
        return part
    if not isinstance(part, str):
        raise _wrong(f"headers[{number}]", part, "give str or bytes")
    try:
        return part.encode()
    except UnicodeEncodeError:
        raise _wrong(f"headers[{number}]", part, UNCLEAN) from None


def _wrong(field: str, value: object, remedy: str) -> Refused:
    return Refused(f"Outbox: {field} is {_shortened(value)}: {remedy}.")


def _shortened(value: object) -> str:
    """Describe a value for an error text, however large it is."""
    if isinstance(value, str | bytes) and len(value) > NAME_LIMIT:
        return f"{type(value).__name__} of length {len(value):,}"
    return reprlib.repr(value)


UNCLEAN = "it holds a control character or half a surrogate pair: remove it"
