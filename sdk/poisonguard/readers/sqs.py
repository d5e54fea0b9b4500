"""Messages of Amazon SQS as boto3 receives them: those of a client, or a resource's.

SQS returns attributes only on request. Request all, or a requeued message is not
recognised:

    client.receive_message(QueueUrl=url, **ATTRIBUTES)

A message keeps its id until it is deleted; sent again, it gets another. Its own id,
which an outbox writes, is the attribute `message_id`. What is no
attribute but belongs to the message stands among the headers as Poisonweb's lanes write
it, `sqs:types`, `sqs:MessageGroupId` and `sqs:AWSTraceHeader`: requeued, it goes back
as it came.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Container, Mapping
from datetime import UTC, datetime
from typing import Any

from poisonguard.contract import REDRIVE_HEADER
from poisonguard.readers import (
    MESSAGE_ID,
    Headers,
    Reader,
    number_of,
    text_id,
    to_bytes,
)

# Arguments of receive_message that request all attributes.
ATTRIBUTES: dict[str, Any] = {
    "MessageAttributeNames": ["All"],
    "MessageSystemAttributeNames": ["All"],
}
# Of a body that is no text: Poisonweb sends it in base64, and marks it so.
BODY_MARK = "x-poisonweb-body"
_MARKED = ("String", b"base64")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ASIDE = ("MessageGroupId", "AWSTraceHeader", "DeadLetterQueueSourceArn")


class SqsReader(Reader):
    """Read a message of `receive_message`, or a `Message` of a boto3 resource.

    Pass `id_attribute=None` where the values of `message_id` are not unique.
    """

    bookmarks_are_places = True

    def __init__(self, *, id_attribute: str | None = MESSAGE_ID) -> None:
        self._id_attribute = id_attribute

    def numbering(self, skipped: Container[str]) -> Callable[[Any], int]:
        """Return a numbering by SQS's id; 0 for a skipped or redriven message."""

        def number(message: Any) -> int:
            members = _members(message)
            bookmark = members["MessageId"]
            if not bookmark or bookmark in skipped:
                return 0
            attributes = members.get("MessageAttributes")
            if attributes and REDRIVE_HEADER in attributes:
                return 0
            return number_of(bookmark)

        return number

    def bookmark(self, message: Any) -> str:
        """Return the id that SQS gave the message."""
        return str(_members(message)["MessageId"])

    def number(self, message: Any) -> int:
        """Return a hash of the SQS message id: copies are other messages to SQS."""
        return number_of(self.bookmark(message))

    def number_again(
        self, *, bookmark: str, message_id: str | None, seq: int | None
    ) -> int:
        """Return an SQS message's `number` from its bookmark alone."""
        return number_of(bookmark)

    def message_id(self, message: Any) -> str | None:
        """Return the id in the message's attribute; None if missing or no text."""
        attributes = _members(message).get("MessageAttributes")
        if not attributes or self._id_attribute not in attributes:
            return None
        return text_id(_type_and_value(attributes[self._id_attribute])[1])

    def body(self, message: Any) -> bytes:
        """Return an SQS message's body, decoded where Poisonweb encoded it."""
        members = _members(message)
        body = to_bytes(members["Body"])
        if _attributes(members).get(BODY_MARK) != _MARKED:
            return body
        decoded = _decode_marked(body)
        return body if decoded is None else decoded

    def headers(self, message: Any) -> Headers:
        """Return the message's attributes, their types and SQS's own, as headers.

        The mark of a body that Poisonweb encoded is no header.
        """
        members = _members(message)
        attributes = _attributes(members)
        is_marked = attributes.get(BODY_MARK) == _MARKED
        if is_marked and _decode_marked(to_bytes(members["Body"])) is not None:
            del attributes[BODY_MARK]
        own = ((to_bytes(name), value) for name, (_, value) in attributes.items())
        return (*own, *_sqs_headers(members.get("Attributes") or {}, attributes))

    def redrive(self, message: Any) -> str | None:
        """Return the value of the message's redrive attribute, or None."""
        attributes = _members(message).get("MessageAttributes")
        if not attributes or REDRIVE_HEADER not in attributes:
            return None
        return _type_and_value(attributes[REDRIVE_HEADER])[1].decode("utf-8", "replace")

    def enqueued_at(self, message: Any) -> datetime | None:
        """Return when SQS got the message; None if that was not requested."""
        milliseconds = (_members(message).get("Attributes") or {}).get("SentTimestamp")
        return (
            datetime.fromtimestamp(int(milliseconds) / 1_000, UTC)
            if milliseconds
            else None
        )

    def dequeue_count(self, message: Any) -> int | None:
        """Return how often SQS delivered a message; None if not requested."""
        attributes = _members(message).get("Attributes") or {}
        count = attributes.get("ApproximateReceiveCount")
        return int(count) if count else None


def _members(message: Any) -> Mapping[str, Any]:
    """Return the members of a message from SQS, which a resource has in `meta`."""
    members: Mapping[str, Any]
    members = message if isinstance(message, dict) else message.meta.data
    return members


def _attributes(members: Mapping[str, Any]) -> dict[str, tuple[str, bytes]]:
    """Return type and value of each attribute of an SQS message, by name."""
    attributes = members.get("MessageAttributes") or {}
    return {name: _type_and_value(wire) for name, wire in sorted(attributes.items())}


def _type_and_value(wire: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the type and the value of a message attribute."""
    kind = wire["DataType"]
    is_binary = kind.partition(".")[0] == "Binary"
    value = wire.get("BinaryValue", b"") if is_binary else wire.get("StringValue", "")
    return kind, to_bytes(value)


def _sqs_headers(
    system: Mapping[str, str], attributes: Mapping[str, tuple[str, bytes]]
) -> Headers:
    """Return a message's attribute types and system attributes as headers."""
    types = {name: kind for name, (kind, _) in attributes.items() if kind != "String"}
    written = json.dumps(types, separators=(",", ":")) if types else ""
    values = {"types": written, **{name: system.get(name, "") for name in _ASIDE}}
    return tuple(
        (f"sqs:{name}".encode(), to_bytes(value))
        for name, value in values.items()
        if value
    )


def _decode_marked(body: bytes) -> bytes | None:
    """Decode an SQS body that Poisonweb encoded; return None for any other."""
    try:
        decoded = base64.b64decode(body, validate=True)
    except binascii.Error:
        return None
    is_ours = not _is_text(decoded) and base64.b64encode(decoded) == body
    return decoded if is_ours else None


def _is_text(value: bytes) -> bool:
    """Tell whether the bytes are text that SQS accepts as a body."""
    try:
        return not _NO_XML.search(value.decode())
    except UnicodeDecodeError:
        return False
