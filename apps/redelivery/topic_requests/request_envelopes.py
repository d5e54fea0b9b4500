"""The envelope of a request: it names an endpoint and a path, never a URL.

By headers, where the broker has them; the body of the message is that of the request:

    x-poisonweb-endpoint: stock-quote
    x-poisonweb-path: /quotes/IBM?lang=en
    x-poisonweb-method: PUT
    x-poisonweb-idempotency-key: order-13
    x-poisonweb-http-Content-Type: text/xml

Or, on any broker, as JSON, with the body in base64:

    {"version": 1, "endpoint": "stock-quote", "path": "/quotes/IBM?lang=en",
     "method": "PUT", "idempotency_key": "order-13",
     "headers": [["Content-Type", "text/xml"]], "body": "PHF1b3RlLz4="}

Only the endpoint, and in JSON the version, must be there. A message with the header
`x-poisonweb-endpoint` is of the first form, each other one of the second.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apps.brokers.adapter_contract import Header
from apps.core.errors import Invalid
from apps.redelivery.outbound.request_and_answer_headers import HOPS
from apps.redelivery.outbound.request_and_answer_headers import (
    IDEMPOTENCY_KEY as KEY_OF_HTTP,
)
from apps.redelivery.request_message_headers import IDEMPOTENCY_KEY, METHOD, PATH

VERSION = 1
ENDPOINT = b"x-poisonweb-endpoint"
HTTP_PREFIX = b"x-poisonweb-http-"
USUAL_METHOD = "POST"
LONGEST_METHOD = 40

_ONCE = frozenset({ENDPOINT, PATH, METHOD, IDEMPOTENCY_KEY})
_MEMBERS = frozenset(
    {"version", "endpoint", "path", "method", "headers", "body", "idempotency_key"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestEnvelope:
    """A request as a message holds it; nothing but its form is checked."""

    endpoint: str
    path: bytes = b""
    query: bytes = b""
    method: str = USUAL_METHOD
    headers: Sequence[Header] = ()
    body: bytes = field(default=b"", repr=False)


def parse(body: bytes, headers: Sequence[Header]) -> RequestEnvelope:
    """Parse the request envelope in a topic's message; raise Invalid without one."""
    if any(name.lower() == ENDPOINT for name, _ in headers):
        return _of_headers(body, headers)
    return _of_json(body)


def _of_headers(body: bytes, headers: Sequence[Header]) -> RequestEnvelope:
    """Read the envelope of a request to an endpoint from a message's headers."""
    values: dict[bytes, bytes] = {}
    of_http: list[Header] = []
    for name, value in headers:
        small = name.lower()
        if small in _ONCE:
            if small in values:
                raise Invalid(small.decode(), "send it once, not twice.")
            values[small] = value
        elif small.startswith(HTTP_PREFIX):
            of_http.append((name[len(HTTP_PREFIX) :], value))
        elif small == HOPS:
            of_http.append((name, value))
    return _envelope(
        endpoint=_ascii(values[ENDPOINT], ENDPOINT),
        path=values.get(PATH, b""),
        method=_ascii(values.get(METHOD, USUAL_METHOD.encode()), METHOD),
        headers=of_http,
        key=values.get(IDEMPOTENCY_KEY, b""),
        body=body,
    )


def _of_json(text: bytes) -> RequestEnvelope:
    """Read an endpoint request's envelope from the JSON in a message's body."""
    try:
        document = json.loads(text, object_pairs_hook=_members)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise Invalid(
            "envelope",
            f"the message has no header {ENDPOINT.decode()}, and its body is no JSON"
            " object without repeated members.",
        )
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        raise Invalid("version", f"send {VERSION}, the version of the envelope.")
    unknown = sorted(document.keys() - _MEMBERS)
    if unknown:
        raise Invalid(
            "envelope",
            f"{_printable(unknown[0])} is no member of it: an envelope names an"
            " endpoint and a path, never a URL.",
        )
    return _envelope(
        endpoint=_text(document, "endpoint", usual=None),
        path=_text(document, "path").encode("utf-8", "surrogatepass"),
        method=_text(document, "method", usual=USUAL_METHOD),
        headers=_headers_of(document),
        key=_bytes_of(_text(document, "idempotency_key"), "idempotency_key"),
        body=_body_of(document),
    )


def _envelope(
    *,
    endpoint: str,
    path: bytes,
    method: str,
    headers: list[Header],
    key: bytes,
    body: bytes,
) -> RequestEnvelope:
    """Build a request's envelope; raise Invalid for a URL as path, or a bad method."""
    if path and not path.startswith((b"/", b"?")):
        raise Invalid(
            "path", "begin it with a slash: it is a path of the endpoint, never a URL."
        )
    if not method.isascii() or len(method) > LONGEST_METHOD:
        raise Invalid("method", "send a method of HTTP, such as POST.")
    raw_path, _, query = path.partition(b"?")
    if key:
        headers = [*headers, (KEY_OF_HTTP, key)]
    return RequestEnvelope(
        endpoint=endpoint,
        path=raw_path,
        query=query,
        method=method,
        headers=headers,
        body=body,
    )


def _members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict from the members of a JSON object; ValueError for repeated ones."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError
    return members


def _text(document: Mapping[str, Any], name: str, *, usual: str | None = "") -> str:
    """Return a text member of an envelope's JSON, or `usual` if it is missing.

    Raises Invalid for a value that is no text, and for a missing one if `usual` is
    None.
    """
    value = document.get(name, usual)
    if not isinstance(value, str):
        raise Invalid(name, "send text.")
    return value


def _headers_of(document: Mapping[str, Any]) -> list[Header]:
    """Return the HTTP headers in a request's JSON envelope, each a name and a value."""
    pairs = document.get("headers", [])
    if not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
        raise Invalid("headers", 'send a list of pairs such as ["Accept", "text/xml"].')
    return [
        (_bytes_of(name, "headers"), _bytes_of(value, "headers"))
        for name, value in pairs
    ]


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == len(("name", "value"))
        and all(isinstance(each, str) for each in value)
    )


def _body_of(document: Mapping[str, Any]) -> bytes:
    """Decode the request body of a JSON envelope from base64."""
    try:
        return base64.b64decode(_text(document, "body"), validate=True)
    except (binascii.Error, ValueError):
        raise Invalid("body", "send it in base64, with its padding.") from None


def _bytes_of(text: str, field_name: str) -> bytes:
    """Return the bytes of a header, each one a character from U+0000 to U+00FF."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise Invalid(
            field_name, "a header has bytes: write each as a character up to U+00FF."
        ) from None


def _ascii(value: bytes, name: bytes) -> str:
    try:
        return value.decode("ascii")
    except UnicodeDecodeError:
        raise Invalid(name.decode(), "send plain ASCII.") from None


def _printable(name: str) -> str:
    return ascii(name)[:60]
