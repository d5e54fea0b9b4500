"""Read the ends of a period from the parameters of a request."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Final

from apps.core.errors import Invalid

_DAY: Final = len("2026-11-20")


def parse_moment(name: str, value: str | None, of_the_day: time) -> datetime | None:
    """Parse a time, or a day as its first or last moment; UTC is the default zone."""
    if not value:
        return None
    try:
        if len(value) == _DAY:
            return datetime.combine(date.fromisoformat(value), of_the_day, UTC)
        moment = datetime.fromisoformat(value)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        remedy = "send a day such as 2026-11-20, or a time such as 2026-11-20T09:30Z"
        raise Invalid(name, remedy) from None
