"""Read the place of a message in its topic from its bookmark."""

from __future__ import annotations

import re
from dataclasses import dataclass

from apps.bookmarks.runs_of_settled_positions import LAST
from apps.brokers.redis_stream_ids import seq_of

# The longest bookmark with a place: two numbers of 20 digits and their separators.
LONGEST = 42

_NUMBER = re.compile(r"\d{1,19}", re.ASCII)
_STREAM_ID = re.compile(r"\d{1,14}-\d{1,20}", re.ASCII)
_AMPS = re.compile(r"(\d{1,20})\|(\d{1,19})\|", re.ASCII)


@dataclass(frozen=True, slots=True)
class BookmarkPlace:
    publisher: str
    seq: int


def place_of(bookmark: str) -> BookmarkPlace | None:
    """Parse a bookmark: a number, Redis' `ms-n`, or AMPS' `publisher|number|`.

    Return None for everything else: such a message has no comparable place.
    """
    if _STREAM_ID.fullmatch(bookmark):
        return BookmarkPlace("", seq_of(bookmark.encode()))
    if _NUMBER.fullmatch(bookmark):
        return _place_or_none("", int(bookmark))
    amps = _AMPS.fullmatch(bookmark)
    return _place_or_none(amps[1], int(amps[2])) if amps else None


def _place_or_none(publisher: str, seq: int) -> BookmarkPlace | None:
    """Return a bookmark's place; None if its number is too large to store."""
    return BookmarkPlace(publisher, seq) if seq <= LAST else None
