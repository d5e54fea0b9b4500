"""Convert between a message of SQS and our own form of it, without loss.

SQS takes text alone: a body of one character at least, and up to ten attributes, each
with a type. A header is an attribute. Other parts of a message become headers with a
colon in their names, which no attribute's name has:

=====================  =============================================================
`sqs:types`            JSON: the types of the attributes that are no plain `String`
`sqs:MessageGroupId`   the group in a FIFO queue, or the tenant in a fair one
`sqs:AWSTraceHeader`   the trace that the message belongs to
`sqs:DeadLetterQueueSourceArn`  where its redrive policy moved it from; never sent
=====================  =============================================================

A body that SQS would not store as text is sent in base64 with the attribute
`x-poisonweb-body: base64`, and read back as the same bytes. A message that SQS would
change or refuse raises `Refused` here, before anything is sent.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from apps.brokers.adapter_contract import Header, Outbound
from apps.core.errors import Refused

FIFO = ".fifo"
LARGEST = 2**20
MOST_ATTRIBUTES = 10
LONGEST_NAME = 256

TYPES = b"sqs:types"
GROUP = b"sqs:MessageGroupId"
TRACE = b"sqs:AWSTraceHeader"
CAME_FROM = b"sqs:DeadLetterQueueSourceArn"
BODY_MARK = "x-poisonweb-body"
_MARKED = ("String", b"base64")

# XML 1.0 has no characters beyond these: SQS replaces others by U+FFFD.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME = re.compile(
    r"(?!aws\.|amazon\.)[a-z0-9_-]++(?>(?:\.[a-z0-9_-]++)*)", re.IGNORECASE
)
_TOKEN = re.compile(r"[!-~]{1,128}")

# An attribute's type and its value.
Attribute = tuple[str, bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class SqsEntry:
    """One message for SendMessageBatch; `size` is what SQS counts."""

    body: str
    attributes: Mapping[str, Attribute]
    group: str = ""
    dedupe: str = ""
    trace: str = ""
    size: int = field(init=False)

    def __post_init__(self) -> None:
        parts = sum(len(n) + len(k) + len(v) for n, (k, v) in self.attributes.items())
        object.__setattr__(self, "size", len(self.body.encode()) + parts)

    def to_wire(self, number: int) -> dict[str, Any]:
        """Return the message as an entry of SQS' SendMessageBatch."""
        wire: dict[str, Any] = {"Id": str(number), "MessageBody": self.body}
        if self.attributes:
            wire["MessageAttributes"] = {
                name: _attribute_to_wire(*attribute)
                for name, attribute in self.attributes.items()
            }
        if self.group:
            wire["MessageGroupId"] = self.group
        if self.dedupe:
            wire["MessageDeduplicationId"] = self.dedupe
        if self.trace:
            trace = {"DataType": "String", "StringValue": self.trace}
            wire["MessageSystemAttributes"] = {"AWSTraceHeader": trace}
        return wire


def entry_of(message: Outbound) -> SqsEntry:
    """Convert a message for SQS; raise `Refused` where it cannot leave unchanged."""
    aside, headers = _split_headers(message.headers)
    attributes = _attributes(headers, types=_parse_types(aside.get(TYPES, b"{}")))
    body = _decode_unchanged(message.body)
    if body is None:
        if BODY_MARK in attributes:
            raise Refused(f"The header {BODY_MARK} is ours to set on such a body.")
        body = base64.b64encode(message.body).decode()
        attributes[BODY_MARK] = _MARKED
    entry = SqsEntry(
        body=body,
        attributes=attributes,
        group=_group_of(message, aside),
        dedupe=_valid_token(message.dedupe or uuid4().hex) if _is_fifo(message) else "",
        trace=_decode_value(TRACE, aside.get(TRACE, b"")),
    )
    _require_fit(entry)
    return entry


def content_of(message: Mapping[str, Any]) -> tuple[bytes, tuple[Header, ...]]:
    """Return the body and the headers of a message that SQS handed out."""
    body = _encode_text(message["Body"])
    attributes = {
        name: _attribute_of(wire)
        for name, wire in sorted(message.get("MessageAttributes", {}).items())
    }
    if attributes.get(BODY_MARK) == _MARKED:
        decoded = _decode_base64(body)
        if decoded is not None:
            body = decoded
            del attributes[BODY_MARK]
    headers = [(_encode_text(name), value) for name, (_, value) in attributes.items()]
    return body, (*headers, *_other_headers(message.get("Attributes", {}), attributes))


def _require_fit(entry: SqsEntry) -> None:
    """Raise Refused for an entry that SQS would not take."""
    if not entry.body:
        raise Refused("SQS takes no empty body.")
    if len(entry.attributes) > MOST_ATTRIBUTES:
        count = len(entry.attributes)
        mark = "; the mark of a redrive and that of a body in base64 are two of them"
        raise Refused(f"SQS takes {MOST_ATTRIBUTES} attributes, not {count}{mark}.")
    if entry.size > LARGEST:
        raise Refused(
            f"SQS takes {LARGEST} bytes, body, names, types and values of the "
            f"attributes together, not {entry.size}."
        )


def _split_headers(
    headers: Sequence[Header],
) -> tuple[dict[bytes, bytes], list[Header]]:
    """Split a message's headers into `sqs:` ones and those that become attributes."""
    ours = {TYPES, GROUP, TRACE, CAME_FROM}
    aside = {name: value for name, value in headers if name in ours}
    return aside, [header for header in headers if header[0] not in aside]


def _attributes(
    headers: Sequence[Header], *, types: Mapping[str, str]
) -> dict[str, Attribute]:
    """Convert headers to SQS attributes; raise Refused where SQS refuses one."""
    attributes: dict[str, Attribute] = {}
    for raw, value in headers:
        name = _checked_name(raw)
        if name in attributes:
            raise Refused(f"SQS takes the attribute {name} once, not twice.")
        kind = types.get(name, "String")
        if not value:
            raise Refused(f"SQS takes no empty attribute, as {name} is.")
        if not _is_binary(kind):
            _decode_value(raw, value)
        attributes[name] = (kind, value)
    return attributes


def _checked_name(raw: bytes) -> str:
    """Return an SQS attribute's name; raise Refused for an impossible one."""
    name = raw.decode("ascii", "replace")
    if not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise Refused(
            f"SQS takes no attribute named {raw[:80]!r}: a name has letters, digits, "
            "_, - and single dots within, and does not begin with AWS. or Amazon."
        )
    return name


def _decode_value(name: bytes, value: bytes) -> str:
    """Decode a header's value; raise Refused for what SQS cannot carry as text."""
    text = _decode_unchanged(value)
    if text is None:
        raise Refused(f"The value of {name.decode(errors='replace')} is no text.")
    return text


def _parse_types(value: bytes) -> dict[str, str]:
    """Parse the header that names the types of SQS attributes; raise Refused."""
    try:
        types = json.loads(value)
    except (ValueError, RecursionError):
        types = None
    if not isinstance(types, dict) or not all(
        isinstance(kind, str) for kind in types.values()
    ):
        raise Refused(f"The header {TYPES.decode()} is no JSON of names and types.")
    return types


def _group_of(message: Outbound, aside: Mapping[bytes, bytes]) -> str:
    """Return the message group: the original's, or in a FIFO queue a new one.

    A message without a group, key and dedupe id gets a group of its own, so it never
    waits for others.
    """
    original = aside.get(GROUP, b"").decode("utf-8", "surrogateescape")
    if not _is_fifo(message):
        return _valid_token(original) if original else ""
    return _valid_token(original or message.key or message.dedupe or uuid4().hex)


def _valid_token(text: str) -> str:
    """Return a valid group or dedupe id as it is; replace any other by its hash."""
    if _TOKEN.fullmatch(text):
        return text
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _is_fifo(message: Outbound) -> bool:
    """Tell whether an SQS broker's message goes to a FIFO queue."""
    return message.topic.endswith(FIFO)


def _is_binary(kind: str) -> bool:
    """Tell whether SQS attributes of this type hold bytes."""
    return kind.partition(".")[0] == "Binary"


def _decode_unchanged(value: bytes) -> str | None:
    """Decode text that SQS stores unchanged; None for any other."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return None if _NO_XML.search(text) else text


def _encode_text(text: str) -> bytes:
    """Encode any text that SQS handed out as UTF-8 bytes."""
    return text.encode("utf-8", "surrogatepass")


def _decode_base64(body: bytes) -> bytes | None:
    """Decode an SQS body that `entry_of` put in base64; None if it never writes it."""
    try:
        decoded = base64.b64decode(body, validate=True)
    except binascii.Error:
        return None
    undone = _decode_unchanged(decoded) is None and base64.b64encode(decoded) == body
    return decoded if undone else None


def _attribute_of(wire: Mapping[str, Any]) -> Attribute:
    """Return the type and value of an SQS attribute that was received."""
    kind = wire["DataType"]
    if _is_binary(kind):
        return kind, bytes(wire.get("BinaryValue", b""))
    return kind, _encode_text(wire.get("StringValue", ""))


def _attribute_to_wire(kind: str, value: bytes) -> dict[str, Any]:
    """Return an SQS attribute as a call sends it."""
    if _is_binary(kind):
        return {"DataType": kind, "BinaryValue": value}
    return {"DataType": kind, "StringValue": value.decode()}


def _other_headers(
    system: Mapping[str, str], attributes: Mapping[str, Attribute]
) -> list[Header]:
    """Return as headers what a message of SQS has beside body and attributes."""
    types = {n: kind for n, (kind, _) in attributes.items() if kind != "String"}
    headers = [
        (TYPES, json.dumps(types, separators=(",", ":")).encode() if types else b""),
        (GROUP, _encode_text(system.get("MessageGroupId", ""))),
        (TRACE, _encode_text(system.get("AWSTraceHeader", ""))),
        (CAME_FROM, _encode_text(system.get("DeadLetterQueueSourceArn", ""))),
    ]
    return [(name, value) for name, value in headers if value]
