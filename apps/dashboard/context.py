"""What every page needs around its own content."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest

from apps.core.requests import request_id
from apps.dashboard.preferences import PREFERENCES, chosen
from apps.dashboard.selectors import operations


def shell(request: HttpRequest) -> dict[str, Any]:
    preferred = chosen(request.COOKIES)
    return {
        "environment": settings.POISONWEB_ENVIRONMENT,
        "request_id": request_id(request),
        "preferred": preferred,
        "preferences": [(each, preferred[each.name]) for each in PREFERENCES],
        # A callable: pages without the bar must not ask the database for it.
        "running_operations": operations.running,
    }
