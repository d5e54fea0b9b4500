"""What there is to know of one message, read when it is asked for, and once."""

from __future__ import annotations

import hashlib
import re
import time
from datetime import datetime
from functools import cached_property
from typing import Any

from poisonguard.contract import Skip
from poisonguard.readers import Headers, Reader
from poisonguard.rules import PointerRule, read
from poisonguard.skips import SkipList

# Anybody can put any header on a message: what is not of this shape, we have not set.
_REDRIVE = re.compile(
    "([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})[.][A-Za-z0-9_-]{1,128}"
)


class Reading:
    """One message through the eyes of its reader."""

    def __init__(self, reader: Reader, message: Any) -> None:
        self.reader = reader
        self.message = message
        self.kept_alive_at = time.monotonic()  # having come counts

    @cached_property
    def bookmark(self) -> str:
        return self.reader.bookmark(self.message)

    @cached_property
    def number(self) -> int:
        return self.reader.number(self.message)

    @cached_property
    def message_id(self) -> str | None:
        return self.reader.message_id(self.message)

    @cached_property
    def body(self) -> bytes:
        return self.reader.body(self.message)

    @cached_property
    def document(self) -> object:
        """Return the body as the rules see it."""
        return read(self.body)

    @cached_property
    def headers(self) -> Headers:
        return self.reader.headers(self.message)

    @cached_property
    def redrive(self) -> str | None:
        return self.reader.redrive(self.message)

    @cached_property
    def redrive_id(self) -> str | None:
        """Return which redrive has sent it; each stands for one (poison, n)."""
        found = _REDRIVE.fullmatch(self.redrive or "")
        return found[1] if found else None

    @cached_property
    def enqueued_at(self) -> datetime | None:
        """Return since when it counts as waiting; None where that says nothing.

        A topic that replays hands out its whole past, and a redriven message may bear
        the time at which it was produced.
        """
        if self.reader.replays or self.redrive_id:
            return None
        return self.reader.enqueued_at(self.message)

    @cached_property
    def identity(self) -> bytes:
        """Return what stays the same when the broker hands the message out again."""
        if self.message_id:
            return b"id:" + self.message_id.encode("utf-8", "surrogatepass")
        return b"bookmark:" + self.bookmark.encode("utf-8", "surrogatepass")

    def skip(self, skips: SkipList) -> Skip | None:
        """Find what says to pass this message over.

        A redriven message passes what is meant for the poison it was, but neither a
        rule nor what this very redrive has made by failing elsewhere.
        """
        found = self._own_skip(skips)
        if found is not None and self.redrive_id not in {None, found.redrive}:
            found = None
        return found or self._rule_skip(skips)

    def _own_skip(self, skips: SkipList) -> Skip | None:
        found = skips.bookmarks.get(self.bookmark)
        if found is None and self.message_id:
            found = skips.message_ids.get(self.message_id)
        if found is None and skips.digests:
            found = skips.digests.get(hashlib.sha256(self.body).digest())
        return found

    def _rule_skip(self, skips: SkipList) -> Skip | None:
        for candidate in skips.rules:
            rule = candidate.rule
            if (
                rule.matches_document(self.document)
                if isinstance(rule, PointerRule)
                else rule.matches(body=self.body, headers=self.headers)
            ):
                return candidate.skip
        return None
