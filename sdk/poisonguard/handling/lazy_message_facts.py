"""The facts of one message, each read once, on first use."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import uuid4

from poisonguard.contract import (
    COUNT_LIMIT,
    SEQUENCE_LIMIT,
    TEXT_LIMIT,
    Skip,
    is_name,
    redrive_id_of,
)
from poisonguard.errors import GuardError
from poisonguard.handling.unreadable_message_byte_recovery import (
    DESCRIBED_TYPE,
    description,
    raw_bytes,
)
from poisonguard.readers import Headers, Reader, header_pairs, number_of, to_bytes
from poisonguard.skipping.content_match_rules import PointerRule, read
from poisonguard.skipping.skip_list import SkipList

log = logging.getLogger(__name__)

NUMBERS_END = 2**64


class MessageFacts:
    """One message as its reader sees it; never raises a reader's exception.

    `unreadable` is the exception of a reader that cannot identify the message: such a
    message cannot be handled, and its bytes stand in for the missing identity. Other
    facts that the reader cannot read are left out.
    """

    def __init__(
        self,
        reader: Reader,
        message: Any,
        handler: Callable[[Any], Any],
        *,
        topic: str,
    ) -> None:
        self.reader = reader
        self.message = message
        self.unreadable: Exception | None = None
        self._has_bytes = True
        self.handler = handler
        self.kept_alive_at = time.monotonic()  # its arrival counts
        self._topic = topic

    @property
    def name(self) -> str:
        """Return the words that name the message in logs: its bookmark and topic."""
        return f"message {self.bookmark[:200]!r} of {self._topic}"

    @cached_property
    def bookmark(self) -> str:
        """Return the broker's id of the message, or a digest of its body."""
        text = self._own_bookmark
        if text:
            return _fitting(text)
        if text is not None:
            return f"sha256:{_digest(self.body)}"
        if self.is_described:
            # Other messages may have the same description: it cannot identify one.
            return f"unreadable-{uuid4()}"
        return f"unreadable-{_digest(self.body)}"

    @cached_property
    def _own_bookmark(self) -> str | None:
        """Return the broker's id of the message, "" for none, None if unreadable."""
        text: str | None = self._read_identifying("bookmark", str)
        return text

    @cached_property
    def number(self) -> int:
        """Return the number that stands for the message in the journal."""
        number: int | None = self._read_identifying("number", int)
        if number is None or not 0 < number < NUMBERS_END or self._own_bookmark == "":
            return number_of(self.message_id or self.bookmark)
        return number

    @cached_property
    def message_id(self) -> str | None:
        """Return the producer's id of the message, its digest if too long, or None."""
        text = self._read_identifying("message_id", str | None)
        return _fitting(text) if text else None

    @cached_property
    def redrive(self) -> str | None:
        """Return the message's redrive header; None for one too long to be ours."""
        value: str | None = self._read_identifying("redrive", str | None)
        # None of ours is so long, and the server rejects reports with longer ones.
        return value if value and len(value) <= TEXT_LIMIT else None

    @cached_property
    def body(self) -> bytes:
        """Return the message's bytes; if none can be read, its description."""
        try:
            return to_bytes(self.reader.body(self.message))
        except Exception as error:  # noqa: BLE001 - whatever a reader raises
            self._log_unreadable("body", error)
        data = raw_bytes(self.message)
        self._has_bytes = data is not None
        return description(self.message) if data is None else data

    @property
    def is_described(self) -> bool:
        """Tell whether the body only describes a message whose bytes cannot be read."""
        return bool(self.body) and not self._has_bytes

    @cached_property
    def document(self) -> object:
        """Return the body of the message as the rules read it."""
        return read(self.body)

    @cached_property
    def headers(self) -> Headers:
        """Return the message's headers as the reader reads them, or none."""
        try:
            return header_pairs(self.reader.headers(self.message))
        except Exception as error:  # noqa: BLE001 - whatever a reader raises
            self._log_unreadable("headers", error)
            return ()

    @cached_property
    def redrive_id(self) -> str | None:
        """Return the id of the redrive that sent the message; each is (poison, n)."""
        return redrive_id_of(self.redrive)

    @cached_property
    def enqueued_at(self) -> datetime | None:
        """Return when the message began to wait; None if the broker's time is not it.

        A topic that replays delivers its whole past, and a redriven message may carry
        the time when it was first produced.
        """
        if self.reader.replays or self.redrive_id:
            return None
        moment: datetime | None = self._read_optional("enqueued_at", datetime | None)
        if moment is not None and moment.tzinfo is None:
            self._log_unreadable("enqueued_at", ValueError("it has no zone"))
            return None
        return moment

    @cached_property
    def replays(self) -> bool:
        """Tell whether the topic's broker delivers the message again, as it was."""
        return self.reader.replays and not self.is_described

    @cached_property
    def publisher(self) -> str | None:
        """Return the message's publisher, None for a name that no report may hold."""
        name = self._read_optional("publisher", str | None)
        return name if name and is_name(name) else None

    @cached_property
    def seq(self) -> int | None:
        """Return the publisher's number of the message, None beyond the limits."""
        number = self._read_optional("seq", int | None)
        return None if number is None or not 0 <= number <= SEQUENCE_LIMIT else number

    @cached_property
    def content_type(self) -> str | None:
        """Return the message's content type, cut to fit a report, or None."""
        if self.is_described:
            return DESCRIBED_TYPE
        text = self._read_optional("content_type", str | None)
        return text[:TEXT_LIMIT] if text else None

    @cached_property
    def dequeue_count(self) -> int | None:
        """Return how often the broker delivered the message, or None."""
        number = self._read_optional("dequeue_count", int | None)
        return None if number is None else min(max(number, 0), COUNT_LIMIT)

    def _read_identifying(self, name: str, kind: Any) -> Any:
        """Read a fact that identifies the message; note the error where that fails.

        Return None then. A GuardError is raised.
        """
        try:
            return self._read(name, kind)
        except GuardError:  # the consumer must be fixed, not the message
            raise
        except Exception as error:  # noqa: BLE001 - whatever a reader raises
            self.unreadable = self.unreadable or error
            return None

    def _read_optional(self, name: str, kind: Any) -> Any:
        """Read a fact of the message that may be missing; None where that fails."""
        try:
            return self._read(name, kind)
        except Exception as error:  # noqa: BLE001 - whatever a reader raises
            self._log_unreadable(name, error)
            return None

    def _read(self, name: str, kind: Any) -> Any:
        """Call a method of the message's reader; raise TypeError for a wrong type."""
        value = getattr(self.reader, name)(self.message)
        if not isinstance(value, kind) or isinstance(value, bool):
            problem = (
                f"{type(self.reader).__name__}.{name} tells {type(value).__name__}"
            )
            raise TypeError(f"{problem}: make it {getattr(kind, '__name__', kind)}.")
        return value

    def _log_unreadable(self, name: str, error: Exception) -> None:
        """Log that the reader cannot read a fact of the message."""
        reader, kind = type(self.reader).__name__, type(self.message).__name__
        log.warning("%s cannot read the %s of this %s: %r", reader, name, kind, error)

    @cached_property
    def identity(self) -> bytes:
        """Return the message id, or else the bookmark, as a key over deliveries.

        It stays the same over all deliveries of the message.
        """
        if self.message_id:
            return b"id:" + self.message_id.encode("utf-8", "surrogatepass")
        return b"bookmark:" + self.bookmark.encode("utf-8", "surrogatepass")

    def skip(self, skips: SkipList) -> Skip | None:
        """Return the skip that applies to this message.

        A redriven message ignores skips of the poison it was, but obeys rules, and the
        skip made when this same redrive failed elsewhere.
        """
        skip = self._own_skip(skips)
        if skip is not None and self.redrive_id not in {None, skip.redrive}:
            skip = None
        return skip or self._rule_skip(skips)

    def _own_skip(self, skips: SkipList) -> Skip | None:
        """Find the skip of the message's bookmark, message id or digest."""
        skip = skips.bookmarks.get(self.bookmark)
        if skip is None and self.message_id:
            skip = skips.message_ids.get(self.message_id)
        if skip is None and skips.digests:
            skip = skips.digests.get(hashlib.sha256(self.body).digest())
        return skip

    def _rule_skip(self, skips: SkipList) -> Skip | None:
        """Find the first skip whose rule matches the message."""
        for candidate in skips.rules:
            rule = candidate.rule
            if (
                rule.matches_document(self.document)
                if isinstance(rule, PointerRule)
                else rule.matches(body=self.body, headers=self.headers)
            ):
                return candidate.skip
        return None


def _fitting(text: str) -> str:
    """Return a message's text, or its digest where too long for a report."""
    if len(text) <= TEXT_LIMIT:
        return text
    return f"sha256-{_digest(text.encode('utf-8', 'surrogatepass'))}"


def _digest(data: bytes) -> str:
    """Return the SHA-256 of bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
