"""Entries of a Redis stream as redis-py returns them: `(id, fields)`.

One field is the body, and the others are the headers, in their order. The body's place
is before them; an empty header of its name marks another place, so that an entry can be
put together again exactly as it was.

The field `message_id` is the message's own id, which an outbox writes: a window of a
guard knows copies by it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from poisonguard.contract import REDRIVE_HEADER
from poisonguard.readers import (
    MESSAGE_ID,
    Headers,
    Reader,
    header_pairs,
    text_id,
)

SEQ_LIMIT = 2**63 - 2
_MOST_LOW = 2**20 - 1
_REDRIVE = REDRIVE_HEADER.encode()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

Entry = tuple[bytes | str, Mapping[Any, Any] | list[tuple[Any, Any]]]


class RedisStreamsReader(Reader):
    """Read stream entries; pass `replays=True` where no consumer group is used.

    Pass `id_field=None` where the values of the field `message_id` are not unique.
    """

    bookmarks_are_places = True

    def __init__(
        self,
        *,
        body_field: str = "body",
        replays: bool = False,
        id_field: str | None = MESSAGE_ID,
    ) -> None:
        self.replays = replays
        self._body_field = body_field.encode()
        self._id_names = () if id_field is None else (id_field.encode(), id_field)

    def numbering(self, skipped: Container[str]) -> Callable[[Entry], int]:
        """Return a fast numbering by entry id, 0 for skipped and redriven entries."""
        slowly = super().numbering(skipped)

        def number(message: Entry) -> int:
            entry_id, fields = message
            bookmark = entry_id.decode() if type(entry_id) is bytes else entry_id
            if (
                type(fields) is not dict
                or _REDRIVE in fields
                or REDRIVE_HEADER in fields
            ):
                return slowly(message)
            if bookmark in skipped:
                return 0
            milliseconds, _, count = bookmark.partition("-")  # type: ignore[arg-type]
            low = int(count or 0)
            seq = int(milliseconds) << 20 | low
            is_usual = low <= _MOST_LOW and seq < SEQ_LIMIT
            return seq + 1 if is_usual else slowly(message)

        return number

    def number_at(self, moment: datetime) -> int:
        """Return the first entry number in the millisecond after this moment."""
        # Messages of the same millisecond may be older.
        return ((moment - _EPOCH) // _MILLISECOND + 1 << 20) + 1

    def bookmark(self, message: Entry) -> str:
        """Return the entry id as text."""
        entry_id = message[0]
        return entry_id.decode() if isinstance(entry_id, bytes) else entry_id

    def number(self, message: Entry) -> int:
        """Return the entry's `seq` plus 1: numbers order entries by time."""
        return self.seq(message) + 1

    def number_again(
        self, *, bookmark: str, message_id: str | None, seq: int | None
    ) -> int:
        """Compute a Redis entry's number from its bookmark, 0 if that is no id."""
        try:
            return self.number((bookmark, {}))
        except ValueError:  # no id of an entry
            return 0

    def seq(self, message: Entry) -> int:
        """Return the entry id as one number: milliseconds, then 20 bits."""
        milliseconds, _, number = self.bookmark(message).partition("-")
        low = min(int(number or 0), _MOST_LOW)
        return min(int(milliseconds) << 20 | low, SEQ_LIMIT)

    def message_id(self, message: Entry) -> str | None:
        """Return the entry's message id; None if missing, empty or no text."""
        fields = message[1]
        by_name = fields if isinstance(fields, Mapping) else dict(fields)
        for name in self._id_names:
            if name in by_name:
                return text_id(by_name[name])
        return None

    def body(self, message: Entry) -> bytes:
        """Return the entry's field that is the body, b"" without one."""
        return self._body_and_headers(message)[0]

    def headers(self, message: Entry) -> Headers:
        """Return the entry's fields but the body as headers; one may mark its place."""
        return self._body_and_headers(message)[1]

    def enqueued_at(self, message: Entry) -> datetime | None:
        """Return the time in the entry id; None if it is no date."""
        milliseconds = int(self.bookmark(message).partition("-")[0])
        try:
            return datetime.fromtimestamp(milliseconds / 1000, UTC)
        except (OverflowError, OSError, ValueError):  # producers may choose any ids
            return None

    def _body_and_headers(self, message: Entry) -> tuple[bytes, Headers]:
        """Split an entry's fields into body and headers."""
        fields = header_pairs(message[1])
        names = [name for name, _ in fields]
        if self._body_field not in names:
            return b"", fields
        place = names.index(self._body_field)
        body, mark = fields[place][1], (self._body_field, b"")
        # An entry with a field that looks like the mark needs the mark before it.
        marks = (mark,) if place > 0 or mark in fields else ()
        return body, (*fields[:place], *marks, *fields[place + 1 :])
