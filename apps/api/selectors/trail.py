"""The audit trail. It spans all topics, so a key for some of them does not see it."""

from __future__ import annotations

from apps.api.paging import Page, Place, Window
from apps.audit.filters import TrailFilter
from apps.audit.models import Entry
from apps.team.rights import Principal


def matching(wanted: TrailFilter, window: Window, principal: Principal) -> Page[Entry]:
    principal.require_trail()
    rows = wanted.matching()
    if window.after:
        rows = rows.filter(seq__lt=window.after.pk)
    return window.cut(rows, lambda row: Place(pk=row.seq))
