"""The context that every page needs around its own content."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.conf import settings
from django.contrib.messages import get_messages
from django.http import HttpRequest

from apps.core import clock
from apps.core.request_id_and_proxy_warning_middleware import request_id
from apps.dashboard import undo_offer
from apps.dashboard.preferences import PREFERENCES, preferences_from
from apps.dashboard.selectors import triage_operations
from apps.dashboard.selectors.triage_operations import UndoOffer
from apps.team.models import User
from apps.team.rights import Scope
from apps.triage.models import Operation


def _may_act(request: HttpRequest) -> bool:
    """Tell whether the user may decide on messages."""
    user = request.user
    return isinstance(user, User) and user.principal.may(Scope.OPERATIONS_WRITE)


def _running_operations(request: HttpRequest) -> list[Operation]:
    """List the unfinished operations that the user sees."""
    user = request.user
    return triage_operations.running(user.principal) if isinstance(user, User) else []


def _undo_offer(request: HttpRequest) -> UndoOffer | None:
    """Return the drop operation that the page offers to undo, or None."""
    return undo_offer.offer_on(request, now=clock.now())


def shell(request: HttpRequest) -> dict[str, Any]:
    """Return the variables of each page's frame: preferences, menu, messages."""
    preferred = preferences_from(request.COOKIES)
    return {
        "environment": settings.POISONWEB_ENVIRONMENT,
        "request_id": request_id(request),
        "preferred": preferred,
        "preferences": [(each, preferred[each.name]) for each in PREFERENCES],
        # Callables: a page without the bar must not ask the database for them.
        "running_operations": partial(_running_operations, request),
        "undo_offer": partial(_undo_offer, request),
        "may_act": partial(_may_act, request),
        # The messages of the form that led here; only a whole page shows them, once.
        "flash_messages": partial(get_messages, request),
    }
