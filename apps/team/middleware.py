"""Which sessions come in: none that is over, or that lacks a second factor."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils.functional import SimpleLazyObject

from apps.core import clock
from apps.team import second_factor_session, sessions
from apps.team.models import User

Handler = Callable[[HttpRequest], HttpResponse]

NOTED_EVERY = timedelta(minutes=5)
# All there is for a person who has to set up a second factor first.
WITHOUT_SECOND_FACTOR = frozenset(
    {"second-factor", "second-factor-qr", "sign-out", "preferences"}
)


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
        refusal = super().process_view(request, view_func, view_args, view_kwargs)
        if refusal is None and _has_to_add_a_factor(request):
            return redirect("second-factor")
        return refusal


def _has_to_add_a_factor(request: HttpRequest) -> bool:
    wanted = request.resolver_match
    is_open = wanted is not None and wanted.url_name in WITHOUT_SECOND_FACTOR
    return not is_open and second_factor_session.is_missing(request)


def IdleSessionMiddleware(respond: Handler) -> Handler:  # noqa: N802 - named as Django does
    """End a session of which `apps.team.sessions` says that it is over."""

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
    if sessions.is_over(request.session, now=now):
        # Nobody acts here, so it is no sign-out on the trail: a GET writes none.
        request.session.flush()
        return AnonymousUser()
    idle = now - datetime.fromisoformat(request.session[sessions.AT_WORK])
    if idle > NOTED_EVERY and "HX-Request" not in request.headers:
        request.session[sessions.AT_WORK] = now.isoformat()
    return signed_in
