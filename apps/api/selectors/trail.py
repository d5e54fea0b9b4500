"""The audit trail. It spans all topics, so a key for some of them does not see it."""

from __future__ import annotations

from apps.api.paging import Page, Place, Window
from apps.api.parameters.trail import Trail
from apps.audit.models import Entry
from apps.core.errors import Forbidden
from apps.team.rights import Principal


def allow(principal: Principal) -> None:
    """Raise Forbidden unless this principal sees every topic."""
    if not principal.sees_every_topic:
        raise Forbidden("The trail spans all topics; this key is for some of them.")


def matching(wanted: Trail, window: Window, principal: Principal) -> Page[Entry]:
    allow(principal)
    told = {
        "actor": wanted.actor,
        "action": wanted.action,
        "subject": wanted.subject,
        "at__gte": wanted.since,
        "at__lte": wanted.until,
        "seq__lt": window.after.pk if window.after else None,
    }
    filters = {name: value for name, value in told.items() if value is not None}
    rows = Entry.objects.filter(**filters).order_by("-seq")
    return window.cut(rows, lambda row: Place(pk=row.seq))
