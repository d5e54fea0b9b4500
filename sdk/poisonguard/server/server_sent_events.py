"""Parse server-sent events from the pieces in which they arrive."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from poisonguard.errors import Away

# Room for a bookmark of 100 KB with escapes; a broken server cannot fill memory.
LIMIT = 4 * 1024 * 1024

# A CR that is the last byte so far may be the first half of a CRLF.
_LINE_END = re.compile(rb"\r\n|\n|\r(?=[\s\S])")


@dataclass(frozen=True, slots=True)
class Event:
    """One event; `id` is the last id of the stream so far, "" if there was none."""

    kind: str
    data: str
    id: str


def parse(pieces: Iterable[bytes]) -> Iterator[Event]:
    """Yield each server-sent event as soon as the blank line behind it arrives.

    Events with a kind but no data, such as pings, are yielded, too.
    """
    kind, data, last_id, size = "", list[str](), "", 0
    for line in _lines(pieces):
        if not line:
            if kind or data:
                yield Event(kind or "message", "\n".join(data), last_id)
            kind, data, size = "", [], 0
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            kind = value
        elif name == "data":
            size += len(value)
            _refuse_beyond_limit(size)
            data.append(value)
        elif name == "id" and "\0" not in value:
            last_id = value


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the event stream's whole lines as text; raise Away for one too long."""
    rest = b""
    for piece in pieces:
        rest += piece
        *lines, rest = _LINE_END.split(rest)
        for line in lines:
            yield line.decode("utf-8", "replace")
        _refuse_beyond_limit(len(rest))


def _refuse_beyond_limit(size: int) -> None:
    """Raise Away if an event has more than LIMIT bytes."""
    if size > LIMIT:
        raise Away(f"The stream has an event of more than {LIMIT} bytes.")
