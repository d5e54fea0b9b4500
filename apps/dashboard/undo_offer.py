"""The notice that offers to undo a drop, on the pages that a person sees after it.

The session stores the last drop that was confirmed in it, so that a page without one
asks the database for nothing. Notices that wait must not cover the controls of a small
screen, so there is no second one. It is shown once the drop has ended, until it is
dismissed or undone, or for `OFFERED_FOR`. The page of the operation offers the same for
as long as it is possible.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.http import HttpRequest

from apps.dashboard.last_visit import Session
from apps.dashboard.selectors import triage_operations
from apps.dashboard.selectors.triage_operations import UndoOffer
from apps.team.models import User
from apps.team.rights import Scope

OFFERED_FOR = timedelta(minutes=10)
_KEY = "undo_offer"


def remember(session: Session, operation_id: int) -> None:
    """Store a drop operation in the session, whose undo pages then offer.

    It replaces the drop that was offered before.
    """
    session[_KEY] = operation_id


def forget(session: Session, operation_id: int) -> None:
    """Remove a drop operation from the session, so that pages offer no undo of it.

    Does nothing if the session offers another one.
    """
    if session.get(_KEY) == operation_id:
        del session[_KEY]


def offer_on(request: HttpRequest, *, now: datetime) -> UndoOffer | None:
    """Return the drop that a page offers to undo to its user, or None.

    None also on the page of the operation: it has a button of its own.
    """
    user = request.user
    if not isinstance(user, User) or not user.principal.may(Scope.OPERATIONS_WRITE):
        return None
    match = request.resolver_match
    own = match and match.url_name == "operation" and match.kwargs["operation_id"]
    operation_id = request.session.get(_KEY)
    if operation_id is None or operation_id == own:
        return None
    return triage_operations.undo_offer(
        operation_id, user.principal, ended_after=now - OFFERED_FOR
    )
