"""Dates in the headers of answers."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

_NO_DATE_YET = 2**37  # seconds, in the year 6325: within the range of `datetime`


def seconds_since_1970(header: str | None) -> float | None:
    """Parse the HTTP date of a Poisonweb answer, in seconds since 1970.

    Return None for what cannot be a server's.
    """
    try:
        moment = parsedate_to_datetime(header or "").timestamp()
    except (ValueError, OverflowError):
        return None
    return moment if 0 <= moment < _NO_DATE_YET else None
