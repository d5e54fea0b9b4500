"""The second factor in a session: who must enter a code, and who has done so."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.auth import update_session_auth_hash
from django.http import HttpRequest
from django.utils.crypto import constant_time_compare

from apps.team import second_factor, sign_in_attempts
from apps.team.models import User

_PENDING, _PROVED, _SECRET = "code_asked", "second_factor", "new_secret"
# How long a person with the right password may take to enter a code.
CODE_TIMEOUT = timedelta(minutes=10)


def require_code(request: HttpRequest, user: User, *, now: datetime) -> None:
    """Store in the session who must enter a code, after a right password."""
    request.session.cycle_key()
    request.session[_PENDING] = {
        "user": user.pk,
        # The hash changes with the password, and when an admin ends the sessions.
        "hash": user.get_session_auth_hash(),
        "at": now.isoformat(),
    }


def user_awaiting_code(request: HttpRequest, *, now: datetime) -> User | None:
    """Return the person who must enter a code, while their password counts."""
    stored = request.session.get(_PENDING)
    if stored is None or now - datetime.fromisoformat(stored["at"]) > CODE_TIMEOUT:
        return None
    user = User.objects.filter(pk=stored["user"], is_active=True).first()
    if user is None:
        return None
    is_same = constant_time_compare(stored["hash"], user.get_session_auth_hash())
    return user if is_same else None


def note_proof(request: HttpRequest) -> None:
    """Store in the session that its person has entered a right code."""
    request.session.pop(_PENDING, None)
    request.session.pop(_SECRET, None)
    request.session[_PROVED] = True


def stay_signed_in(request: HttpRequest, user: User) -> None:
    """Let this session go on when a change of the factor ends all the others."""
    update_session_auth_hash(request, user)


def forget_proof(request: HttpRequest) -> None:
    """Forget that this session's person has entered a right code."""
    request.session.pop(_PROVED, None)


def new_secret(request: HttpRequest) -> str:
    """Return the second factor's secret to offer, the session's if there is one."""
    if _SECRET not in request.session:
        request.session[_SECRET] = second_factor.sealed_secret()
    return second_factor.clear_secret(request.session[_SECRET])


def offered_secret(request: HttpRequest) -> str | None:
    """Return the second factor's secret that the session offered, or None."""
    sealed = request.session.get(_SECRET)
    return None if sealed is None else second_factor.clear_secret(sealed)


def is_missing(request: HttpRequest) -> bool:
    """Tell whether a required second factor has not been used in this session.

    For people who sign in through an OpenID provider, the provider requires it.
    """
    user = request.user
    return (
        isinstance(user, User)
        and user.role in settings.POISONWEB_SECOND_FACTOR
        and not request.session.get(_PROVED, False)
        and not sign_in_attempts.is_by_provider(request)
    )
