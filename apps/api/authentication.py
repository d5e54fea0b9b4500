"""Who asks: a program by its key, or a person by the session of the pages.

Either way `request.auth` is the principal. A key that is no good is refused; it never
falls back to a session.
"""

from __future__ import annotations

from django.contrib.auth.models import AnonymousUser
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from apps.core import clock
from apps.team import services as team
from apps.team.models import User
from apps.team.rights import Principal

SCHEME = "Bearer"


class ApiKeyAuthentication(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[AnonymousUser, Principal] | None:
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != SCHEME.lower():
            return None
        key = team.recognise(secret=secret.strip(), now=clock.now())
        if key is None:
            raise AuthenticationFailed("This key is unknown, expired or revoked.")
        return AnonymousUser(), key.principal

    def authenticate_header(self, _: Request) -> str:
        return SCHEME


class SignedInAuthentication(SessionAuthentication):
    """A person's session; the parent class asks for the CSRF token where it must."""

    def authenticate(self, request: Request) -> tuple[User, Principal] | None:
        found = super().authenticate(request)
        if found is None:
            return None
        user: User = found[0]
        return user, user.principal
