"""Recognise the sender of a request by its headers, before the body is read."""

from __future__ import annotations

from collections.abc import Mapping

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.sessions.backends.db import SessionStore
from django.http import HttpRequest, parse_cookie

from apps.core import clock
from apps.team import sessions
from apps.team.services import recognise

SCHEME = "bearer"


def is_known(headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a request has a usable key, or a signed-in person's session.

    `headers` have lower-case names. The view checks later what the sender may do.
    """
    scheme, _, secret = _header_text(headers, b"authorization").partition(" ")
    if scheme.lower() == SCHEME:
        return recognise(secret=secret.strip(), now=clock.now()) is not None
    cookies = parse_cookie(_header_text(headers, b"cookie"))
    session = cookies.get(settings.SESSION_COOKIE_NAME, "")
    return bool(session) and _is_of_a_person(session)


def _is_of_a_person(session: str) -> bool:
    """Tell whether the session is in use by a signed-in person."""
    request = HttpRequest()
    request.session = SessionStore(session)
    is_over = sessions.is_over(request.session, now=clock.now())
    return not is_over and get_user(request).is_authenticated


def _header_text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    """Return the value of a request's header as text; "" without it."""
    return headers.get(name, b"").decode("latin-1")
