"""Messages of AMQP 0-9-1 as Poisonweb's RabbitMQ lanes write them down.

A message's properties come first, as `amqp.` and their name, then its own headers. Text
stands for itself; a value of another type is JSON that says its type, like `{"$I": 5}`.
So what is requeued has its content type, its message id and the types of its headers.
Clients do not tell how wide an integer was: it goes back with 32 bits where they do.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from poisonguard.contract import REDRIVE_HEADER
from poisonguard.readers import Headers, as_bytes, to_bytes

DELIVERY_COUNT = "x-delivery-count"  # set by quorum queues: how often it came back
PREFIX = "amqp."
# In the order of the wire. Not `delivery_mode`: what Poisonweb sends is persistent.
PROPERTIES = (
    "content_type",
    "content_encoding",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
_DEEPEST = 32


def pairs(properties: Mapping[str, object], headers: Mapping[str, Any]) -> Headers:
    """Return an AMQP message's properties and headers as a lane stores them."""
    # Headers named like properties go last, so that they are not read as such.
    own = sorted(headers.items(), key=lambda item: str(item[0]).startswith(PREFIX))
    return (
        *_properties(properties),
        *((to_bytes(n), _header_value(v)) for n, v in own if n != DELIVERY_COUNT),
    )


def redrive(headers: Mapping[str, Any] | None) -> str | None:
    """Return the value of the redrive header in AMQP headers, or None."""
    if not headers or REDRIVE_HEADER not in headers:
        return None
    return to_bytes(headers[REDRIVE_HEADER]).decode("utf-8", "replace")


def dequeue_count(headers: Mapping[str, Any] | None) -> int | None:
    """Return how often a quorum queue delivered a message; None for others."""
    returned = (headers or {}).get(DELIVERY_COUNT)
    return returned + 1 if isinstance(returned, int) else None


def moment(timestamp: object) -> datetime | None:
    """Parse a RabbitMQ producer's timestamp; return None where it is no time."""
    if timestamp is None:
        return None
    if isinstance(timestamp, datetime):
        return _in_zone(timestamp)
    try:
        return datetime.fromtimestamp(timestamp, UTC)  # type: ignore[arg-type]
    except (
        OverflowError,
        OSError,
        TypeError,
        ValueError,
    ):  # a producer may send anything
        return None


def _properties(properties: Mapping[str, object]) -> Iterator[tuple[bytes, bytes]]:
    """Yield each set AMQP property as a header."""
    for name in PROPERTIES:
        value = properties.get(name)
        if isinstance(value, datetime):
            value = _seconds(value)
        if value is not None and value != "":
            yield f"{PREFIX}{name}".encode(), to_bytes(value)


def _in_zone(moment: datetime) -> datetime:
    """Return a time as it is, in UTC if without a zone."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _seconds(moment: datetime) -> int:
    """Convert a time of an AMQP message to whole seconds since 1970."""
    return int(_in_zone(moment).timestamp())


def _header_value(value: object) -> bytes:
    """Encode an AMQP header's value: text as it is, other types as typed JSON."""
    text = as_bytes(value)
    if text is not None:
        return _wrapped_as_raw(text) if _reads_as_json(text) else text
    try:
        plain = _jsonable(value, deep=0)
        is_bare = not isinstance(value, list | tuple | Mapping) or not value
        return _json(_with_type(value, plain) if is_bare else plain)
    except (TypeError, ValueError):  # no AMQP type
        return to_bytes(value)


def _jsonable(value: object, *, deep: int) -> object:
    """Convert an AMQP value for JSON, with types that JSON lacks; raise for others."""
    if deep > _DEEPEST:
        raise ValueError("it is too deep")
    match value:
        case list() | tuple():
            return [_jsonable(one, deep=deep + 1) for one in value]
        case Mapping():
            return {str(n): _jsonable(one, deep=deep + 1) for n, one in value.items()}
        case _:
            return _jsonable_scalar(value)


def _jsonable_scalar(value: object) -> object:
    """Convert one AMQP value that is no list or table, like `_jsonable`."""
    match value:
        case None | bool() | str():
            return value
        case int() if _fits(value, bits=64):
            return value
        case float():
            return {"$d": value}
        case Decimal():
            sign, digits, exponent = value.as_tuple()
            number = int("".join(map(str, digits))) * (-1 if sign else 1)
            return {"$D": [-int(exponent), number]}
        case datetime():
            return {"$T": _seconds(value)}
        case bytes() | bytearray() | memoryview():
            return {"$x": base64.b64encode(bytes(value)).decode()}
        case _:
            raise TypeError(f"AMQP has no {type(value).__name__}")


def _with_type(value: object, plain: object) -> object:
    """Wrap a top-level AMQP value with its AMQP type."""
    match value:
        case None:
            return {"$V": None}
        case bool():
            return {"$t": value}
        case int():
            return {"$I" if _fits(value, bits=32) else "$l": value}
        case list() | tuple():
            return {"$A": []}
        case Mapping():
            return {"$F": {}}
        case _:
            return plain


def _fits(number: int, *, bits: int) -> bool:
    """Tell whether a number fits a signed integer of so many bits."""
    # Not `in range(...)`: for pika's own int types that iterates.
    half = 1 << bits - 1
    return -half <= number < half


def _reads_as_json(text: bytes) -> bool:
    """Tell whether a header's text looks like the typed JSON of another AMQP value.

    Poisonweb would read it as that value.
    """
    if text[:1] not in {b"[", b"{"}:
        return False
    try:
        value = json.loads(text)
        return bool(value) and _json(value) == text
    except (ValueError, RecursionError):
        return False


def _wrapped_as_raw(text: bytes) -> bytes:
    """Wrap a header's text as a raw AMQP value: it would be read as JSON."""
    long_string = b"S" + len(text).to_bytes(4, "big") + text
    return _json({"$raw": base64.b64encode(long_string).decode()})


def _json(plain: object) -> bytes:
    """Write an AMQP header's value as JSON; raise ValueError for NaN and infinities."""
    return json.dumps(plain, ensure_ascii=False, allow_nan=False).encode()
