"""When somebody was here last, so that a page can say what has changed since."""

from __future__ import annotations

from collections.abc import MutableMapping
from datetime import datetime, timedelta
from typing import Any

# Whoever stays away for this long comes back to a new visit.
VISIT = timedelta(minutes=30)
_KEY = "visit"

Session = MutableMapping[str, Any]


def enter(session: Session, *, now: datetime) -> datetime | None:
    """Note that somebody is here; tell when their visit before this one ended."""
    last_seen, before = _stored(session)
    if last_seen is not None and now - last_seen > VISIT:
        before = last_seen
    session[_KEY] = [now.isoformat(), before and before.isoformat()]
    return before


def before(session: Session) -> datetime | None:
    """Tell when the visit before this one ended; None where this is the first."""
    return _stored(session)[1]


def _stored(session: Session) -> tuple[datetime | None, datetime | None]:
    last_seen, earlier = session.get(_KEY, [None, None])
    return _moment(last_seen), _moment(earlier)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
