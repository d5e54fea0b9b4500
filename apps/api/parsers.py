"""JSON out of a request, within bounds and whatever the bytes are."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from rest_framework.parsers import BaseParser

from apps.api.inflation import Readable, inflated
from apps.api.refusals import TooLarge, Unreadable

# Where the SHA-256 of the inflated body is left, for idempotency to compare.
DIGEST = "poisonweb.body_digest"
# Far beyond any number that has a meaning here, and cheap to read.
MOST_DIGITS = 100
# Values of all kinds in one request, names of members not counted. The largest batch of
# failures has some hundred thousand; each costs time in which no other thread works.
MOST_VALUES = 1_000_000
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
        meta = (parser_context or {})["request"].META
        raw = inflated(
            stream,
            encoding=meta.get("HTTP_CONTENT_ENCODING", ""),
            limit=settings.POISONWEB_REQUEST_LIMIT,
        )
        meta[DIGEST] = hashlib.sha256(raw).digest()
        _check_values(raw)
        text = _text(raw)
        raw.clear()  # a body of 90 MB need not be here three times
        return _value(text)


def _check_values(raw: bytearray) -> None:
    """Raise TooLarge for JSON of too many values, before any of them is made."""
    if _beginnings(raw) <= MOST_VALUES:
        return
    # They may stand in strings, of which there are no more than values and names.
    unescaped = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    signs = unescaped.translate(None, _NO_SIGNS)
    too_many_strings = signs.count(b'"') > 4 * MOST_VALUES
    if too_many_strings or _beginnings(_STRING.sub(b"", signs)) > MOST_VALUES:
        raise TooLarge(f"The body has more than {MOST_VALUES} values: send fewer.")


def _beginnings(json_text: bytes | bytearray) -> int:
    return sum(json_text.count(sign) for sign in _BEGIN_A_VALUE)


def _text(raw: bytearray) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as broken:
        raise Unreadable(f"The body is not UTF-8: {broken.reason}.") from None


def _value(text: str) -> object:
    try:
        return json.loads(text, parse_int=_number)
    except RecursionError:
        raise Unreadable("The body is nested too deeply.") from None
    except ValueError as broken:
        raise Unreadable(f"The body is not JSON: {broken}.") from None


def _number(digits: str) -> int | float:
    # Python refuses to read very long integers. As a float, like 1e400, such a number
    # sinks the one member that holds it, and not the request.
    return int(digits) if len(digits) <= MOST_DIGITS else float(digits)
