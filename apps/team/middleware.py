"""Which sessions come in: none that is over, or that lacks a second factor."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.contrib.auth.models import AnonymousUser
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.functional import SimpleLazyObject

from apps.core import clock
from apps.team import second_factor_session, sessions
from apps.team.models import User

# The form that carries out a preview, and the page that it is on.
CONFIRMS, PREVIEWS = "confirm", "preview"
# What was typed stays in the address while somebody signs in; servers bound addresses.
LONGEST_KEPT = 2_000

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
        if refusal is not None and request.method == "POST":
            return _ask_again(request)
        if refusal is None and _has_to_add_a_factor(request):
            return redirect("second-factor")
        return refusal


def _ask_again(request: HttpRequest) -> HttpResponse:
    """Say that a form did nothing, and lead back to the page that it was on."""
    messages.warning(request, "Your session ended: nothing was done. Sign in again.")
    return redirect_to_login(_page_of_form(request), reverse(settings.LOGIN_URL))


def _page_of_form(request: HttpRequest) -> str:
    wanted = request.resolver_match
    if wanted is not None and wanted.url_name == CONFIRMS:
        # A refused form stays at its own address, where nothing is to be had.
        names = ("token", "back", "reason")
        kept = urlencode({name: request.POST.get(name, "") for name in names})
        if len(kept) <= LONGEST_KEPT:
            return f"{reverse(PREVIEWS)}?{kept}"
    page = urlsplit(request.META.get("HTTP_REFERER", ""))
    if page.netloc != request.get_host():
        return reverse(settings.LOGIN_REDIRECT_URL)
    return str(urlunsplit(("", "", page.path, page.query, "")))


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
