"""What people do to their own accounts: this session goes on, the others end."""

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
    """Give who asks another password, and end their other sessions.

    Raises Invalid where the present one is wrong or the new one is easily guessed, and
    TooManySignIns after too many wrong ones: a session may be in wrong hands.
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
    """Sign who asks out everywhere but here."""
    user = services.end_sessions(username=username, actor=Actor.user(username), now=now)
    update_session_auth_hash(request, user)
