"""Middleware of sessions: end expired ones, and require sign-in and second factor."""

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
# A refused form's fields stay in the URL during sign-in; servers limit its length.
LONGEST_QUERY = 2_000

Handler = Callable[[HttpRequest], HttpResponse]

NOTE_EVERY = timedelta(minutes=5)
# The pages open to a person who must set up a second factor first.
WITHOUT_SECOND_FACTOR = frozenset(
    {"second-factor", "second-factor-qr", "sign-out", "preferences"}
)


class SignInRequiredMiddleware(LoginRequiredMiddleware):
    """Look up the user only for views that require one.

    Django's middleware looks up the session first: with Postgres away, /readyz would
    fail for a browser with a cookie instead of reporting it.
    """

    def process_view(
        self, request: HttpRequest, view_func: Any, view_args: Any, view_kwargs: Any
    ) -> HttpResponseBase | None:
        """Redirect to the sign-in, or to the second factor; None lets a request in."""
        if not getattr(view_func, "login_required", True):
            return None
        refusal = super().process_view(request, view_func, view_args, view_kwargs)
        if refusal is not None and request.method == "POST":
            return _redirect_to_sign_in(request)
        if refusal is None and _has_to_add_a_factor(request):
            return redirect("second-factor")
        return refusal


def _redirect_to_sign_in(request: HttpRequest) -> HttpResponse:
    """Redirect to the sign-in, warning that the posted form did nothing."""
    messages.warning(request, "Your session ended: nothing was done. Sign in again.")
    return redirect_to_login(_page_of_form(request), reverse(settings.LOGIN_URL))


def _page_of_form(request: HttpRequest) -> str:
    """Return the path of the posted form's page, to come back to after the sign-in."""
    match = request.resolver_match
    if match is not None and match.url_name == CONFIRMS:
        # A refused form stays at its own URL, which has no page.
        names = ("token", "back", "reason")
        query = urlencode({name: request.POST.get(name, "") for name in names})
        if len(query) <= LONGEST_QUERY:
            return f"{reverse(PREVIEWS)}?{query}"
    page = urlsplit(request.META.get("HTTP_REFERER", ""))
    if page.netloc != request.get_host():
        return reverse(settings.LOGIN_REDIRECT_URL)
    return str(urlunsplit(("", "", page.path, page.query, "")))


def _has_to_add_a_factor(request: HttpRequest) -> bool:
    """Tell whether the page must wait until the person adds a second factor."""
    match = request.resolver_match
    is_open = match is not None and match.url_name in WITHOUT_SECOND_FACTOR
    return not is_open and second_factor_session.is_missing(request)


def IdleSessionMiddleware(respond: Handler) -> Handler:  # noqa: N802 - named as Django does
    """End a session that is over, as `apps.team.sessions` decides."""

    def middleware(request: HttpRequest) -> HttpResponse:
        user = request.user  # lazy: evaluated only by views that need it
        active_user: Any = SimpleLazyObject(partial(_if_active, request, user))
        request.user = active_user
        return respond(request)

    return middleware


def _if_active(
    request: HttpRequest, user: User | AnonymousUser
) -> User | AnonymousUser:
    """Return the session's user; AnonymousUser where the session is over.

    A session that is over is ended. Otherwise its use is stored now and then, but not
    that by requests of htmx.
    """
    if not user.is_authenticated:
        return user
    now = clock.now()
    if sessions.is_over(request.session, now=now):
        # No person acts here, so the audit trail gets no sign-out: a GET writes none.
        request.session.flush()
        return AnonymousUser()
    idle = now - datetime.fromisoformat(request.session[sessions.AT_WORK])
    if idle > NOTE_EVERY and "HX-Request" not in request.headers:
        request.session[sessions.AT_WORK] = now.isoformat()
    return user
