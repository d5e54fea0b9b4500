"""Readers: how to read a message of one broker client, in a few lines.

A reader must define `bookmark` and `body`:

    class NatsReader(Reader):
        def bookmark(self, message: Msg) -> str:
            return str(message.metadata.sequence.stream)

        def body(self, message: Msg) -> bytes:
            return message.data

        def headers(self, message: Msg) -> Headers:
            return header_pairs(message.headers or {})

A reader must return copies: clients may reuse the memory of a message.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping
from datetime import datetime
from typing import Any

from poisonguard.contract import REDRIVE_HEADER

# The name of a field, header or attribute with the message's own id, as an outbox
# writes it.
MESSAGE_ID = "message_id"

Headers = tuple[tuple[bytes, bytes], ...]
Glance = tuple[str, int, bool]  # the bookmark, the number, and whether it is redriven

_REDRIVE_NAME = REDRIVE_HEADER.encode()
_integer = int.from_bytes


class Reader(ABC):
    """The interface through which a guard reads the messages of one client."""

    # Whether the broker delivers a message again to clients that read the topic from an
    # earlier place. Where it does, all consumers must skip what one has poisoned.
    replays: bool = False
    # Whether a message that is sent again gets a new bookmark: then a message with a
    # known bookmark was delivered before, and never settled.
    bookmarks_are_places: bool = False
    # Whether `enqueued_at` may return a time: calling it costs time per message.
    tells_age: bool = True

    @abstractmethod
    def bookmark(self, message: Any) -> str:
        """Return the broker's own id of the message in its topic, "" if it has none."""

    @abstractmethod
    def body(self, message: Any) -> bytes:
        """Return the bytes of the message that its producer sent."""

    def copy(self, message: Any) -> Any:
        """Return a copy of the message that a later retry can use."""
        return message

    def has_identity(self, message: Any) -> bool:
        """Tell whether a later delivery of the message can be recognised."""
        return True

    def number(self, message: Any) -> int:
        """Return a number from 1 to 2**64-1 for the message, equal in all processes."""
        return number_of(self.message_id(message) or self.bookmark(message))

    def number_again(
        self, *, bookmark: str, message_id: str | None, seq: int | None
    ) -> int:
        """Return the message's `number` from its bookmark, message id and seq alone.

        By it the guard recognises a message that it handled and another consumer
        failed on.
        """
        return number_of(message_id or bookmark)

    def number_at(self, moment: datetime) -> int | None:
        """Return the least number of a message that was enqueued after this moment.

        Return None where numbers do not order messages by time. Where they do,
        `enqueued_at` is not called for each message.
        """
        return None

    def glance(self, message: Any) -> Glance:
        """Return a message's bookmark and number, and whether it is redriven."""
        redriven = self.redrive(message) is not None
        return self.bookmark(message), self.number(message), redriven

    def numbering(self, skipped: Container[str]) -> Callable[[Any], int]:
        """Return a function that numbers ordinary messages and returns 0 for others.

        Not ordinary are messages that are redriven, have no bookmark, or a skipped one.
        Override it where speed matters: it runs for every message.
        """
        kind, glance = type(self), self.glance
        if kind.glance is Reader.glance and kind.number is Reader.number:
            return self._numbering_by_id(skipped)

        def number(message: Any) -> int:
            bookmark, number, redriven = glance(message)
            is_ordinary = bookmark and not redriven and bookmark not in skipped
            return number if is_ordinary else 0

        return number

    def numbering_by_age(
        self, skipped: Container[str], is_expired: Callable[[datetime], bool]
    ) -> Callable[[Any], int]:
        """Return the `numbering` of messages, with 0 for expired messages, too."""
        number, enqueued_at = self.numbering(skipped), self.enqueued_at

        def number_by_age(message: Any) -> int:
            began = enqueued_at(message)
            return 0 if began is not None and is_expired(began) else number(message)

        return number_by_age

    def _numbering_by_id(self, skipped: Container[str]) -> Callable[[Any], int]:
        """Return a fast numbering of messages for a reader without its own `number`."""
        kind, read_bookmark, redrive = type(self), self.bookmark, self.redrive
        message_id = self.message_id
        has_message_ids = kind.message_id is not Reader.message_id
        may_be_redriven = (kind.headers, kind.redrive) != (
            Reader.headers,
            Reader.redrive,
        )

        def number(message: Any) -> int:
            bookmark = read_bookmark(message)
            if not bookmark or bookmark in skipped:
                return 0
            if may_be_redriven and redrive(message) is not None:
                return 0
            text = (has_message_ids and message_id(message)) or bookmark
            # `number_of` inlined; the slow path handles text that is no UTF-8.
            return hash(_integer(text.encode())) + 1

        return number

    def message_id(self, message: Any) -> str | None:
        """Return the producer's id of the message, which stays when sent again."""
        return None

    def headers(self, message: Any) -> Headers:
        """Return the message's headers as pairs of bytes, in their order."""
        return ()

    def redrive(self, message: Any) -> str | None:
        """Return the value of the message's redrive header."""
        return find_redrive(self.headers(message))

    def enqueued_at(self, message: Any) -> datetime | None:
        """Return when the message was first enqueued in its topic."""
        return None

    def publisher(self, message: Any) -> str | None:
        """Return the name of the publisher, whose messages `seq` numbers."""
        return None

    def seq(self, message: Any) -> int | None:
        """Return the message's sequence number among those of its publisher."""
        return None

    def content_type(self, message: Any) -> str | None:
        """Return the media type of the message's body."""
        return None

    def dequeue_count(self, message: Any) -> int | None:
        """Return how often the broker delivered the message, this time included."""
        return None


def number_of(text: str) -> int:
    """Hash a text to 61 bits; unlike `hash`, equal in all processes."""
    # By definition, hash() of an integer is its remainder modulo the prime 2**61 - 1:
    # much faster than `%` or a digest.
    try:
        return hash(_integer(text.encode())) + 1
    except UnicodeEncodeError:  # half a surrogate pair
        return hash(_integer(text.encode("utf-8", "surrogatepass"))) + 1


def find_redrive(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the value of the redrive header in headers, None without one."""
    for name, value in headers:
        if name == _REDRIVE_NAME:
            return value.decode("utf-8", "replace")
    return None


def text_id(value: object) -> str | None:
    """Return a message id as text; None for one that is empty, or no UTF-8."""
    try:
        return to_bytes(value).decode() or None
    except UnicodeDecodeError:
        return None


def header_pairs(headers: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> Headers:
    """Convert a client's headers to pairs of bytes."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((to_bytes(name), to_bytes(value)) for name, value in pairs)


def to_bytes(value: object) -> bytes:
    """Return a body in bytes: bytes as they are, text encoded, anything else JSON."""
    if value is None:
        return b""
    data = as_bytes(value)
    if data is not None:
        return data
    return json.dumps(value, default=str, separators=(",", ":")).encode()


def as_bytes(value: object) -> bytes | None:
    """Return a copy of bytes or text as bytes, whatever it holds; None of others."""
    match value:
        case bytes():
            return value
        case bytearray() | memoryview():
            return bytes(value)
        case str():
            return _encoded(value)
        case _:
            return None


def _encoded(text: str) -> bytes:
    """Encode text to UTF-8, also with surrogates in it."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return text.encode("utf-8", "surrogatepass")
