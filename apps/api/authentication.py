"""Authenticate the caller: a program by its key, or a person by the pages' session.

Either way `request.auth` is the principal. A bad key is refused; it never falls back to
a session.
"""

from __future__ import annotations

from typing import cast

from django.contrib.auth.models import AnonymousUser
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.request import Request

from apps.core import clock
from apps.team import refused_api_key_audit, second_factor_session, sign_in_attempts
from apps.team import services as team
from apps.team.models import User
from apps.team.open_stream_credentials import Credential
from apps.team.rights import Principal

SCHEME = "Bearer"


class ApiKeyAuthentication(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[AnonymousUser, Principal] | None:
        """Return the principal of a request's API key; None without a key.

        Audits a bad key, and raises AuthenticationFailed.
        """
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != SCHEME.lower():
            return None
        secret, now = secret.strip(), clock.now()
        key = team.recognise(secret=secret, now=now)
        if key is None:
            sender = sign_in_attempts.address_of(request)
            refused_api_key_audit.note_refusal(secret=secret, address=sender, now=now)
            raise AuthenticationFailed("This key is unknown, expired or revoked.")
        return AnonymousUser(), key.principal

    def authenticate_header(self, _: Request) -> str:
        """Return `Bearer`, the API keys' scheme, for `WWW-Authenticate` of a 401."""
        return SCHEME


class SignedInAuthentication(SessionAuthentication):
    """Authenticate a person by their session; the parent class checks CSRF tokens."""

    def authenticate(self, request: Request) -> tuple[User, Principal] | None:
        """Return the person of a request's session and their principal, if any.

        Refuses a person without their second factor by PermissionDenied.
        """
        signed_in = super().authenticate(request)
        if signed_in is None:
            return None
        user: User = signed_in[0]
        if second_factor_session.is_missing(request._request):  # noqa: SLF001 - Django's own
            raise PermissionDenied("Add a second factor on the pages first.")
        return user, user.principal


def credential_of(request: Request) -> Credential:
    """Return which API key or session a request uses, to check later if it is valid."""
    if isinstance(request.user, User):
        return Credential.of_session(request.session.session_key or "")
    return Credential.of_key(cast(Principal, request.auth).actor)
