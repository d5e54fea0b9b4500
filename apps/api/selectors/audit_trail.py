"""Read the audit trail. It spans all topics, so a key for some topics is refused."""

from __future__ import annotations

from apps.api.keyset_pagination import Page, PageWindow
from apps.audit.filters import TrailFilter
from apps.audit.models import Entry
from apps.team.rights import Principal


def matching(
    filters: TrailFilter, window: PageWindow, principal: Principal
) -> Page[Entry]:
    """List a page of audit entries that match a filter, newest first.

    Raises Forbidden for a key that is for some topics only.
    """
    principal.require_trail()
    rows = filters.matching()
    return window.page(rows)
