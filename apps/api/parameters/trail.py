"""Which audit entries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Self

from django.http import QueryDict

from apps.api.parameters.base import text
from apps.core.errors import Invalid


@dataclass(frozen=True, kw_only=True, slots=True)
class Trail:
    """Which audit entries; None filters nothing. Both times are included."""

    actor: str | None
    action: str | None
    subject: str | None
    since: datetime | None
    until: datetime | None

    @classmethod
    def parse(cls, told: QueryDict) -> Self:
        return cls(
            actor=text("actor", told.get("actor")),
            action=text("action", told.get("action")),
            subject=text("subject", told.get("subject")),
            since=_moment("from", told.get("from"), time.min),
            until=_moment("to", told.get("to"), time.max),
        )


def _moment(name: str, value: str | None, of_the_day: time) -> datetime | None:
    """Read a time, or a day as its first or last moment; both in UTC if not said."""
    if not value:
        return None
    try:
        if len(value) == len("2026-11-20"):
            return datetime.combine(date.fromisoformat(value), of_the_day, UTC)
        moment = datetime.fromisoformat(value)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        remedy = "send a day such as 2026-11-20, or a time such as 2026-11-20T09:30Z"
        raise Invalid(name, remedy) from None
