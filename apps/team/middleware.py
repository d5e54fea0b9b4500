"""Who is not signed in, or has been away for long, is sent to the sign-in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.contrib.auth import logout
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils.functional import SimpleLazyObject

from apps.core import clock
from apps.team.models import User
from apps.team.sign_in import AT_WORK

Handler = Callable[[HttpRequest], HttpResponse]

# An open page asks for news by itself: that is not a person at work.
IDLE = timedelta(hours=12)
NOTED_EVERY = timedelta(minutes=5)


class SignInRequiredMiddleware(LoginRequiredMiddleware):
    """Ask who it is only where it matters.

    Django's own looks the session up first: with Postgres away, a browser that has a
    cookie would not even be told by /readyz that it is.
    """

    def process_view(
        self, request: HttpRequest, view_func: Any, view_args: Any, view_kwargs: Any
    ) -> HttpResponseBase | None:
        if not getattr(view_func, "login_required", True):
            return None
        return super().process_view(request, view_func, view_args, view_kwargs)


def IdleSessionMiddleware(respond: Handler) -> Handler:  # noqa: N802 - named as Django does
    """End a session whose person has not opened a page for twelve hours."""

    def middleware(request: HttpRequest) -> HttpResponse:
        signed_in = request.user  # still unread: it is read where it matters
        at_work: Any = SimpleLazyObject(partial(_if_at_work, request, signed_in))
        request.user = at_work
        return respond(request)

    return middleware


def _if_at_work(
    request: HttpRequest, signed_in: User | AnonymousUser
) -> User | AnonymousUser:
    if not signed_in.is_authenticated:
        return signed_in
    now = clock.now()
    noted = request.session.get(AT_WORK)
    idle = now - datetime.fromisoformat(noted) if noted else timedelta()
    if idle > IDLE:
        request.user = signed_in  # which the sign-out asks for
        logout(request)
        return AnonymousUser()
    if not noted or (idle > NOTED_EVERY and "HX-Request" not in request.headers):
        request.session[AT_WORK] = now.isoformat()
    return signed_in
