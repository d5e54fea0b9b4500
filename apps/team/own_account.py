"""Change one's own account: this session continues, the others end."""

from __future__ import annotations

from datetime import datetime

from django.contrib.auth import authenticate, update_session_auth_hash
from django.http import HttpRequest

from apps.core.actor import Actor
from apps.core.errors import Invalid
from apps.team import services
from apps.team.models import User


def change_password(
    request: HttpRequest, *, username: str, present: str, password: str, now: datetime
) -> None:
    """Change the person's password, and end their other sessions.

    Raises Invalid if the present password is wrong or the new one is easily guessed,
    and TooManySignIns after too many wrong ones: the session may be stolen.
    """
    user = authenticate(
        request, username=username, password=present, page="Your account"
    )
    if not isinstance(user, User):
        raise Invalid("present", "this is not your present password")
    actor = Actor.user(username)
    services.set_password(user=user, password=password, actor=actor, now=now)
    update_session_auth_hash(request, user)


def end_other_sessions(request: HttpRequest, *, username: str, now: datetime) -> None:
    """Sign the person out of all sessions but this one."""
    user = services.end_sessions(username=username, actor=Actor.user(username), now=now)
    update_session_auth_hash(request, user)
