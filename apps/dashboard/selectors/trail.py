"""The audit trail as its page shows it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time

from django.db.models import QuerySet

from apps.audit.models import Entry
from apps.dashboard.paging import Cursor, Page, page


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Which entries; what is empty filters nothing. Days are UTC, both included."""

    actor: str = ""
    action: str = ""
    subject: str = ""
    since: date | None = None
    until: date | None = None

    @property
    def as_query(self) -> dict[str, str]:
        """Spell it as the API's parameters, those left empty left out."""
        spelled = {
            "actor": self.actor,
            "action": self.action,
            "subject": self.subject,
            "from": self.since.isoformat() if self.since else "",
            "to": self.until.isoformat() if self.until else "",
        }
        return {name: value for name, value in spelled.items() if value}


def find(wanted: Wanted, cursor: Cursor | None) -> Page[Entry]:
    return page(_matching(wanted), field="at", cursor=cursor)


def _matching(wanted: Wanted) -> QuerySet[Entry]:
    exact = {"actor": wanted.actor, "action": wanted.action, "subject": wanted.subject}
    entries = Entry.objects.filter(
        **{name: text for name, text in exact.items() if text}
    )
    if wanted.since:
        entries = entries.filter(at__gte=datetime.combine(wanted.since, time.min, UTC))
    if wanted.until:
        entries = entries.filter(at__lte=datetime.combine(wanted.until, time.max, UTC))
    return entries
