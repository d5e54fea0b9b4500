"""The audit trail, as tests look into it."""

from __future__ import annotations

from apps.audit.models import Entry


def entries(action: str) -> list[Entry]:
    """Return the audit entries of an action, oldest first."""
    return list(Entry.objects.filter(action=action).order_by("seq"))
