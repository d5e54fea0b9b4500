"""Who is not signed in is sent to the sign-in, except where nobody needs to be."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.http import HttpRequest, HttpResponseBase


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
