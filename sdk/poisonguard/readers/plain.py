"""Messages that are plain mappings, or nothing but bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Mapping
from datetime import UTC, datetime
from typing import Any

from poisonguard.contract import REDRIVE_HEADER
from poisonguard.readers import (
    Headers,
    Reader,
    find_redrive,
    header_pairs,
    number_of,
    to_bytes,
)

_holds_no_redrive = frozenset({REDRIVE_HEADER, REDRIVE_HEADER.encode()}).isdisjoint


class PlainReader(Reader):
    """Read mappings; each argument is the name of a member.

    A message without the member `body` is its own body, as JSON. `seq` names a whole
    number from 0 that grows along the topic, and makes numbering cheap. The member
    `enqueued_at` holds a datetime with a zone, or seconds since 1970.
    """

    def __init__(
        self,
        *,
        bookmark: str = "bookmark",
        seq: str | None = None,
        enqueued_at: str | None = None,
        replays: bool = False,
    ) -> None:
        self.replays = replays
        self.bookmarks_are_places = seq is not None
        self._bookmark = bookmark
        self._seq = seq
        self._enqueued_at = enqueued_at
        self.tells_age = enqueued_at is not None

    def numbering(self, skipped: Container[str]) -> Callable[[Mapping[str, Any]], int]:
        """Return a fast numbering of messages, 0 for skipped and redriven ones."""
        return self._numbering(skipped, None)

    def numbering_by_age(
        self, skipped: Container[str], is_expired: Callable[[datetime], bool]
    ) -> Callable[[Mapping[str, Any]], int]:
        """Return the `numbering` of plain mappings, with 0 for expired ones, too."""
        if type(self).enqueued_at is not PlainReader.enqueued_at:
            return super().numbering_by_age(skipped, is_expired)
        return self._numbering(skipped, is_expired)

    def _numbering(  # noqa: C901 - each message would pay for another call
        self, skipped: Container[str], is_expired: Callable[[datetime], bool] | None
    ) -> Callable[[Mapping[str, Any]], int]:
        """Return the function that numbers messages, and may check their age."""
        name, seq = self._bookmark, self._seq
        age = self._enqueued_at or ""

        def number(message: Mapping[str, Any]) -> int:  # noqa: C901 - see above
            bookmark = message[name]
            if type(bookmark) is not str:
                bookmark = _text(bookmark)
            if not bookmark or bookmark in skipped:
                return 0
            if "headers" in message:
                headers = message["headers"]
                is_free = type(headers) is dict and _holds_no_redrive(headers)
                if not is_free and self.redrive(message) is not None:
                    return 0
            if is_expired and age in message:
                began = message[age]
                if type(began) is not datetime:
                    began = self.enqueued_at(message)
                if began is not None and is_expired(began):
                    return 0
            if seq is not None:
                return message[seq] + 1  # type: ignore[no-any-return]
            return number_of(message.get("message_id") or bookmark)

        return number

    def bookmark(self, message: Mapping[str, Any]) -> str:
        """Return a mapping message's member `bookmark` as text, "" for None."""
        return _text(message[self._bookmark]) or ""

    def number(self, message: Mapping[str, Any]) -> int:
        """Return a mapping message's `seq` plus 1, or a hash of its id or bookmark."""
        if self._seq is not None:
            return int(message[self._seq]) + 1
        return number_of(message.get("message_id") or self.bookmark(message))

    def number_again(
        self, *, bookmark: str, message_id: str | None, seq: int | None
    ) -> int:
        """Return a plain mapping's `number` from bookmark, message id, seq alone."""
        if self._seq is None or seq is None:
            return number_of(message_id or bookmark)
        return seq + 1

    def body(self, message: Mapping[str, Any]) -> bytes:
        """Return a plain mapping's member `body` as bytes, or all of it as JSON."""
        if "body" in message:
            body = message["body"]
            return body if type(body) is bytes else to_bytes(body)
        if not isinstance(message, Mapping):  # dict() would make one of any pairs
            raise TypeError(f"A {type(message).__name__} is no mapping.")
        return to_bytes(dict(message))

    def headers(self, message: Mapping[str, Any]) -> Headers:
        """Return the member `headers` of a plain mapping as pairs of bytes."""
        return header_pairs(message.get("headers") or ())

    def redrive(self, message: Mapping[str, Any]) -> str | None:
        """Return the value of a mapping message's redrive header, or None."""
        headers = message.get("headers")
        if not headers:
            return None
        return find_redrive(header_pairs(headers))

    def message_id(self, message: Mapping[str, Any]) -> str | None:
        return _text(message.get("message_id"))

    def enqueued_at(self, message: Mapping[str, Any]) -> datetime | None:
        """Return a mapping message's member `enqueued_at` as a time, or None."""
        value = message.get(self._enqueued_at) if self._enqueued_at else None
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        return value

    def publisher(self, message: Mapping[str, Any]) -> str | None:
        return _text(message.get("publisher"))

    def seq(self, message: Mapping[str, Any]) -> int | None:
        """Return a mapping message's member `seq`, or None."""
        return message.get(self._seq) if self._seq else None

    def content_type(self, message: Mapping[str, Any]) -> str | None:
        return _text(message.get("content_type"))


class BytesReader(Reader):
    """Read messages that are bytes and nothing else: equal ones are one message."""

    def bookmark(self, message: bytes) -> str:
        """Return the digest, in hexadecimal, of a message that is nothing but bytes."""
        return hashlib.sha256(message).hexdigest()

    def body(self, message: bytes) -> bytes:
        return bytes(message)


def _text(value: object) -> str | None:
    """Return a member of a mapping message as text; None for None."""
    return None if value is None else str(value)
