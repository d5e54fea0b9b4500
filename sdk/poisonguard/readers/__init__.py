"""How to read a message of one broker client; a reader is a few lines.

`bookmark` and `body` are all that a reader has to have:

    class NatsReader(Reader):
        def bookmark(self, message: Msg) -> str:
            return str(message.metadata.sequence.stream)

        def body(self, message: Msg) -> bytes:
            return message.data

        def headers(self, message: Msg) -> Headers:
            return header_pairs(message.headers or {})

What a reader returns is a copy: clients may use the message's memory again.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping
from datetime import datetime
from typing import Any

from poisonguard.contract import REDRIVE_HEADER

Headers = tuple[tuple[bytes, bytes], ...]
Glance = tuple[str, int, bool]  # the bookmark, the number, and whether it is redriven

_REDRIVE_NAME = REDRIVE_HEADER.encode()
_integer = int.from_bytes


class Reader(ABC):
    """What a guard wants to know of a message, in the words of one broker client."""

    # Whether the broker hands a message out again to whoever reads the topic from
    # before it. Where it does, each consumer has to skip what one has found poisonous.
    replays: bool = False
    # Whether a message that is sent again gets another bookmark: then one that comes
    # back under its own was handed out before, and never settled.
    bookmarks_are_places: bool = False
    # Whether `enqueued_at` has anything to say: asking costs every message.
    tells_age: bool = True

    @abstractmethod
    def bookmark(self, message: Any) -> str:
        """Return the broker's own id of the message in its topic, "" if it has none."""

    @abstractmethod
    def body(self, message: Any) -> bytes:
        """Return the bytes that its producer sent."""

    def copy(self, message: Any) -> Any:
        """Return a message that stays as it is, for a retry some time later."""
        return message

    def has_identity(self, message: Any) -> bool:
        """Tell whether it is known again when the broker hands it out again."""
        return True

    def number(self, message: Any) -> int:
        """Number the message from 1 to 2**64-1, in every process the same."""
        return number_of(self.message_id(message) or self.bookmark(message))

    def number_again(
        self, *, bookmark: str, message_id: str | None, seq: int | None
    ) -> int:
        """Number a message of which no more than this is known, as `number` does.

        By it the guard knows again what it handled when another consumer fails on it.
        """
        return number_of(message_id or bookmark)

    def number_at(self, moment: datetime) -> int | None:
        """Return the least number of a message that was enqueued after this moment.

        None where its number does not tell when a message was enqueued; where it does,
        `enqueued_at` is not asked for each message.
        """
        return None

    def glance(self, message: Any) -> Glance:
        """Return all that is asked of an ordinary message."""
        redriven = self.redrive(message) is not None
        return self.bookmark(message), self.number(message), redriven

    def numbering(self, skipped: Container[str]) -> Callable[[Any], int]:
        """Make what numbers an ordinary message, and gives 0 to any other.

        Another one is redriven, has no bookmark, or one that is among the skipped. A
        reader that is worth the trouble tells all this in one go, and fast.
        """
        kind, glance = type(self), self.glance
        if kind.glance is Reader.glance and kind.number is Reader.number:
            return self._numbering_by_id(skipped)

        def number(message: Any) -> int:
            bookmark, number, redriven = glance(message)
            is_ordinary = bookmark and not redriven and bookmark not in skipped
            return number if is_ordinary else 0

        return number

    def _numbering_by_id(self, skipped: Container[str]) -> Callable[[Any], int]:
        """Do the same for a reader with no numbers of its own, which reads once."""
        kind, read_bookmark, redrive = type(self), self.bookmark, self.redrive
        message_id = self.message_id
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
            return number_of(message_id(message) or bookmark)

        return number

    def message_id(self, message: Any) -> str | None:
        """Return the id its producer gave it, which stays when it is sent again."""
        return None

    def headers(self, message: Any) -> Headers:
        return ()

    def redrive(self, message: Any) -> str | None:
        """Return the value of the header that a redrive has set."""
        return find_redrive(self.headers(message))

    def enqueued_at(self, message: Any) -> datetime | None:
        """Return when it was first put into its topic."""
        return None

    def publisher(self, message: Any) -> str | None:
        return None

    def seq(self, message: Any) -> int | None:
        """Return its place among the messages of its publisher."""
        return None

    def content_type(self, message: Any) -> str | None:
        return None

    def dequeue_count(self, message: Any) -> int | None:
        """Return how often the broker has handed it out, this time included."""
        return None


def number_of(text: str) -> int:
    """Number a text with 61 bits; unlike its `hash`, in every process the same."""
    # An integer hashes to what remains of it modulo the prime 2**61 - 1, by definition
    # and much faster than `%` or a digest gets there.
    try:
        return hash(_integer(text.encode(), "big")) + 1
    except UnicodeEncodeError:  # half a surrogate pair
        return hash(_integer(text.encode("utf-8", "surrogatepass"), "big")) + 1


def find_redrive(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    for name, value in headers:
        if name == _REDRIVE_NAME:
            return value.decode("utf-8", "replace")
    return None


def header_pairs(headers: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> Headers:
    """Make pairs of bytes of a client's headers; several values make several pairs."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((to_bytes(name), to_bytes(value)) for name, value in pairs)


def to_bytes(value: object) -> bytes:
    """Keep bytes, encode text, and write anything else as JSON."""
    if value is None:
        return b""
    data = as_bytes(value)
    if data is not None:
        return data
    return json.dumps(value, default=str, separators=(",", ":")).encode()


def as_bytes(value: object) -> bytes | None:
    """Return a copy of bytes or of text, whatever it holds; None of anything else."""
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
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return text.encode("utf-8", "surrogatepass")
