"""The context that every page needs around its own content."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.conf import settings
from django.contrib.messages import get_messages
from django.http import HttpRequest

from apps.core.request_middleware import request_id
from apps.dashboard.preferences import PREFERENCES, chosen
from apps.dashboard.selectors import operations
from apps.team.models import User
from apps.team.rights import Scope
from apps.triage.models import Operation


def _may_act(request: HttpRequest) -> bool:
    """Return whether the user may decide on messages."""
    user = request.user
    return isinstance(user, User) and user.principal.may(Scope.OPERATIONS_WRITE)


def _running_operations(request: HttpRequest) -> list[Operation]:
    """List the unfinished operations that the user sees."""
    user = request.user
    return operations.running(user.principal) if isinstance(user, User) else []


def shell(request: HttpRequest) -> dict[str, Any]:
    """Return the variables of each page's frame: preferences, menu, messages."""
    preferred = chosen(request.COOKIES)
    return {
        "environment": settings.POISONWEB_ENVIRONMENT,
        "request_id": request_id(request),
        "preferred": preferred,
        "preferences": [(each, preferred[each.name]) for each in PREFERENCES],
        # Callables: a page without the bar must not ask the database for them.
        "running_operations": partial(_running_operations, request),
        "may_act": partial(_may_act, request),
        # The messages of the form that led here; only a whole page shows them, once.
        "flash_messages": partial(get_messages, request),
    }
