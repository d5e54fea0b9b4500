"""Parse the JSON body of a request, with bounds on its size and number of values."""

from __future__ import annotations

import gc
import hashlib
import json
import re
from collections.abc import Mapping
from threading import Lock
from typing import Any

from django.conf import settings
from rest_framework.parsers import BaseParser

from apps.api.body_decompression import Readable, inflate
from apps.api.request_exceptions import TooLarge, Unreadable

# The key in META of the SHA-256 of the inflated body; idempotency compares it.
DIGEST = "poisonweb.body_digest"
# Far more digits than any number here has, and still cheap to read.
MOST_DIGITS = 100
# The number of values in one request, without the names of members. The largest batch
# of failures has some hundred thousand. Parsing each holds the GIL for a while.
MOST_VALUES = 1_000_000
# Bodies from this size on are parsed one at a time: parsing takes longer than waiting.
LARGE = 64 * 1024
_large_bodies = Lock()
_BEGIN_A_VALUE = b"[{,"
_NO_SIGNS = bytes(set(range(256)) - set(_BEGIN_A_VALUE + b'"'))
_STRING = re.compile(rb'"[^"]*+"?')


class BoundedJSONParser(BaseParser):
    """Inflate and read a JSON body; raises Unreadable, TooLarge or UnknownEncoding."""

    media_type = "application/json"

    def parse(
        self,
        stream: Readable,
        _: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Inflate and parse a request's JSON; store its digest in request.META."""
        meta = (parser_context or {})["request"].META
        raw = inflate(
            stream,
            encoding=meta.get("HTTP_CONTENT_ENCODING", ""),
            limit=settings.POISONWEB_REQUEST_LIMIT,
        )
        meta[DIGEST] = hashlib.sha256(raw).digest()
        try:
            return _read(raw) if len(raw) < LARGE else _read_large(raw)
        finally:
            # Free the bytes now: an exception may keep this frame alive for a while.
            raw.clear()


def _read_large(raw: bytearray) -> object:
    """Parse the JSON of a large body, one at a time; collect garbage only before it.

    The GIL lets only one thread parse JSON anyway: several at once only make the other
    threads wait. And the garbage collector would traverse the growing result, and the
    rest of the process, again and again.
    """
    with _large_bodies:
        # A request and its view refer to each other, so the data of the previous
        # request is still in memory.
        gc.collect(1)
        gc.disable()
        try:
            return _read(raw)
        finally:
            gc.enable()


def _read(raw: bytearray) -> object:
    """Parse a request body's JSON; clear its bytes as soon as they are decoded."""
    _check_values(raw)
    text = _decoded(raw)
    raw.clear()  # a body of 90 MB need not be in memory three times
    return _parsed_json(text)


def _check_values(raw: bytearray) -> None:
    """Raise TooLarge for JSON of too many values, before it is parsed."""
    if _has_too_many_values(raw):
        raise TooLarge(f"The body has more than {MOST_VALUES} values: send fewer.")


def _has_too_many_values(raw: bytearray) -> bool:
    """Tell whether a request body's JSON has more values than the API allows."""
    if _beginnings(raw) <= MOST_VALUES:
        return False
    # The signs may be inside strings; there are no more strings than values and names.
    unescaped = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    signs = unescaped.translate(None, _NO_SIGNS)
    too_many_strings = signs.count(b'"') > 4 * MOST_VALUES
    return too_many_strings or _beginnings(_STRING.sub(b"", signs)) > MOST_VALUES


def _beginnings(json_text: bytes | bytearray) -> int:
    """Count the signs in a body's JSON that begin a value."""
    return sum(json_text.count(sign) for sign in _BEGIN_A_VALUE)


def _decoded(raw: bytearray) -> str:
    """Decode a request's body as UTF-8; raises Unreadable."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"The body is not UTF-8: {error.reason}.") from None


def _parsed_json(text: str) -> object:
    """Parse the JSON of a request's body; raises Unreadable."""
    try:
        return json.loads(text, parse_int=_whole_number)
    except RecursionError:
        raise Unreadable("The body is nested too deeply.") from None
    except ValueError as error:
        raise Unreadable(f"The body is not JSON: {error}.") from None


def _whole_number(digits: str) -> int | float:
    """Parse the digits of JSON's whole number; a very long one becomes a float."""
    # Python refuses to read very long integers. As a float, like 1e400, such a number
    # makes only the member that holds it invalid, not the whole request.
    return int(digits) if len(digits) <= MOST_DIGITS else float(digits)
