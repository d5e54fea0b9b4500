"""Entries of a Redis stream as redis-py returns them: `(id, fields)`.

One field is the body, and the others are the headers, in their order. The body's place
is before them; an empty header of its name marks another place, so that an entry can be
put together again exactly as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from poisonguard.readers import Headers, Reader, header_pairs

SEQ_LIMIT = 2**63 - 2

Entry = tuple[bytes | str, Mapping[Any, Any] | list[tuple[Any, Any]]]


class RedisStreamsReader(Reader):
    """Reads stream entries; pass `replays=True` where no consumer group is used."""

    bookmarks_are_places = True

    def __init__(self, *, body_field: str = "body", replays: bool = False) -> None:
        self.replays = replays
        self._body_field = body_field.encode()

    def bookmark(self, message: Entry) -> str:
        entry_id = message[0]
        return entry_id.decode() if isinstance(entry_id, bytes) else entry_id

    def number(self, message: Entry) -> int:
        return self.seq(message) + 1

    def number_again(
        self, *, bookmark: str, message_id: str | None, seq: int | None
    ) -> int:
        try:
            return self.number((bookmark, {}))
        except ValueError:  # no id of an entry
            return 0

    def seq(self, message: Entry) -> int:
        """Order the id in one number: milliseconds, then 20 bits to count in one."""
        milliseconds, _, number = self.bookmark(message).partition("-")
        low = min(int(number or 0), 2**20 - 1)
        return min(int(milliseconds) << 20 | low, SEQ_LIMIT)

    def body(self, message: Entry) -> bytes:
        return self._split(message)[0]

    def headers(self, message: Entry) -> Headers:
        return self._split(message)[1]

    def enqueued_at(self, message: Entry) -> datetime | None:
        milliseconds = int(self.bookmark(message).partition("-")[0])
        try:
            return datetime.fromtimestamp(milliseconds / 1000, UTC)
        except (OverflowError, OSError, ValueError):  # ids may be anybody's numbers
            return None

    def _split(self, message: Entry) -> tuple[bytes, Headers]:
        fields = header_pairs(message[1])
        names = [name for name, _ in fields]
        if self._body_field not in names:
            return b"", fields
        place = names.index(self._body_field)
        body, mark = fields[place][1], (self._body_field, b"")
        # An entry with a field that looks like the mark needs the mark before it.
        marks = (mark,) if place > 0 or mark in fields else ()
        return body, (*fields[:place], *marks, *fields[place + 1 :])
