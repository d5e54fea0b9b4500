"""The time of a person's last visit, so that a page can show what is new since."""

from __future__ import annotations

from collections.abc import MutableMapping
from datetime import datetime, timedelta
from typing import Any

# A person who comes back after this long begins a new visit.
VISIT_GAP = timedelta(minutes=30)
# A view is recorded when the last record is this old: each record is a write.
RECORDED_EVERY = timedelta(minutes=1)
_KEY = "visit"

Session = MutableMapping[str, Any]


def record_visit(session: Session, *, now: datetime) -> datetime | None:
    """Record a person's page view; return when the previous visit ended.

    That is up to a minute too early, so a page rather says twice what is new.
    """
    last_seen, before = _stored_times(session)
    if last_seen is not None and last_seen <= now < last_seen + RECORDED_EVERY:
        return before
    if last_seen is not None and now - last_seen > VISIT_GAP:
        before = last_seen
    session[_KEY] = [now.isoformat(), before and before.isoformat()]
    return before


def previous_visit(session: Session) -> datetime | None:
    """Return when a person's previous visit ended; None during the first."""
    return _stored_times(session)[1]


def _stored_times(session: Session) -> tuple[datetime | None, datetime | None]:
    """Return when a person last viewed a page, and when the visit before ended."""
    last_seen, earlier = session.get(_KEY, [None, None])
    return _moment(last_seen), _moment(earlier)


def _moment(text: str | None) -> datetime | None:
    """Parse the stored time of a visit; None without one."""
    return None if text is None else datetime.fromisoformat(text)
