"""What a session knows of the second factor: who has to give a code, who gave one."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.auth import update_session_auth_hash
from django.http import HttpRequest
from django.utils.crypto import constant_time_compare

from apps.team import second_factor, sign_in
from apps.team.models import User

_ASKED, _PROVED, _SECRET = "code_asked", "second_factor", "new_secret"
# So long somebody with the right password may look for their phone.
PATIENCE = timedelta(minutes=10)


def ask(request: HttpRequest, user: User, *, now: datetime) -> None:
    """Note whose password was right; they are signed in only once they give a code."""
    request.session.cycle_key()
    request.session[_ASKED] = {
        "user": user.pk,
        # It changes with the password, and when an admin ends the sessions.
        "hash": user.get_session_auth_hash(),
        "at": now.isoformat(),
    }


def asked(request: HttpRequest, *, now: datetime) -> User | None:
    """Give the person who has to give a code, while their password still counts."""
    noted = request.session.get(_ASKED)
    if noted is None or now - datetime.fromisoformat(noted["at"]) > PATIENCE:
        return None
    user = User.objects.filter(pk=noted["user"], is_active=True).first()
    if user is None:
        return None
    is_same = constant_time_compare(noted["hash"], user.get_session_auth_hash())
    return user if is_same else None


def note_proof(request: HttpRequest) -> None:
    """Note that the person of this session gave a right code."""
    request.session.pop(_ASKED, None)
    request.session.pop(_SECRET, None)
    request.session[_PROVED] = True


def stay_signed_in(request: HttpRequest, user: User) -> None:
    """Keep this session, alone, where a change of the factor ends all of them."""
    update_session_auth_hash(request, user)


def forget_proof(request: HttpRequest) -> None:
    request.session.pop(_PROVED, None)


def new_secret(request: HttpRequest) -> str:
    """Give the secret that is offered to an app: the same until it is confirmed."""
    if _SECRET not in request.session:
        request.session[_SECRET] = second_factor.sealed_secret()
    return second_factor.clear_secret(request.session[_SECRET])


def offered_secret(request: HttpRequest) -> str | None:
    sealed = request.session.get(_SECRET)
    return None if sealed is None else second_factor.clear_secret(sealed)


def is_missing(request: HttpRequest) -> bool:
    """Tell a person whose role must have a second factor, and who gave none.

    For who comes through an OpenID provider, that is the provider's to ask for.
    """
    user = request.user
    return (
        isinstance(user, User)
        and user.role in settings.POISONWEB_SECOND_FACTOR
        and not request.session.get(_PROVED, False)
        and not sign_in.is_by_provider(request)
    )
