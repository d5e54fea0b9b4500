"""Where in its topic a message is, as far as its bookmark tells."""

from __future__ import annotations

import re
from dataclasses import dataclass

from apps.bookmarks.runs import LAST
from apps.brokers.stream_ids import seq_of

# The longest bookmark that is a place: two numbers of 20 digits and their signs.
LONGEST = 42

_NUMBER = re.compile(r"\d{1,19}", re.ASCII)
_STREAM_ID = re.compile(r"\d{1,14}-\d{1,20}", re.ASCII)
_AMPS = re.compile(r"(\d{1,20})\|(\d{1,19})\|", re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    publisher: str
    seq: int


def place_of(bookmark: str) -> Place | None:
    """Read a plain number, the `ms-n` of a Redis stream, or AMPS' `publisher|number|`.

    None for everything else: such a message has no place that can be compared.
    """
    if _STREAM_ID.fullmatch(bookmark):
        return Place("", seq_of(bookmark.encode()))
    if _NUMBER.fullmatch(bookmark):
        return _usable("", int(bookmark))
    amps = _AMPS.fullmatch(bookmark)
    return _usable(amps[1], int(amps[2])) if amps else None


def _usable(publisher: str, seq: int) -> Place | None:
    return Place(publisher, seq) if seq <= LAST else None
