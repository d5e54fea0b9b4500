"""Decorators of views: check the rights of a user, and show a refusal as a page."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django_htmx.middleware import HtmxDetails

from apps.core.errors import Forbidden, PoisonwebError
from apps.dashboard.domain_error_pages import error_page
from apps.team.models import User
from apps.team.rights import Scope

P = ParamSpec("P")


class SignedIn(HttpRequest):
    user: User
    htmx: HtmxDetails


View = Callable[Concatenate[SignedIn, P], HttpResponseBase]


def needs(scope: Scope) -> Callable[[View[P]], View[P]]:
    """Require a scope of a view; show its PoisonwebError as an error page."""

    def decorate(view: View[P]) -> View[P]:
        return _checked(view, lambda user: user.principal.require(scope))

    return decorate


def for_admins(view: View[P]) -> View[P]:
    """Require an admin for a view; no scope opens it, so no API key does."""
    return _checked(view, _require_admin)


def for_everyone(view: View[P]) -> View[P]:
    """Require a signed-in user for a view, with any role."""
    return _checked(view, lambda _: None)


def _require_admin(user: User) -> None:
    """Raise Forbidden for anyone but an admin."""
    if not user.is_admin:
        raise Forbidden("People and keys are managed by admins.")


def _checked(view: View[P], check: Callable[[User], None]) -> View[P]:
    """Wrap a view: check the user first; show a PoisonwebError as an error page."""

    @wraps(view)
    def guarded(
        request: SignedIn, /, *args: P.args, **kwargs: P.kwargs
    ) -> HttpResponseBase:
        try:
            check(request.user)
            return view(request, *args, **kwargs)
        except PoisonwebError as error:
            return error_page(request, error)

    return guarded


def show(
    request: SignedIn,
    whole: str,
    context: dict[str, object],
    *,
    live: str,
    status: int = 200,
) -> HttpResponse:
    """Render a whole page, or only its live part where htmx asks."""
    if request.htmx:
        return render(
            request, "htmx_poll_response.html", {**context, "live": live}, status=status
        )
    return render(request, whole, context, status=status)
