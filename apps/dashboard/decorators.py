"""The way into a page: who asks, whether they may, and how a refusal is told."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django_htmx.middleware import HtmxDetails

from apps.core.errors import Forbidden, PoisonwebError
from apps.dashboard.views import errors
from apps.team.models import User
from apps.team.rights import Scope

P = ParamSpec("P")


class SignedIn(HttpRequest):
    user: User
    htmx: HtmxDetails


View = Callable[Concatenate[SignedIn, P], HttpResponseBase]


def needs(scope: Scope) -> Callable[[View[P]], View[P]]:
    """Let in who has the right; turn what the view raises into a page that says it."""

    def decorate(view: View[P]) -> View[P]:
        return _guarded(view, lambda user: user.principal.require(scope))

    return decorate


def for_admins(view: View[P]) -> View[P]:
    """Let in admins; no scope opens these pages, so no key does."""
    return _guarded(view, _require_admin)


def for_everyone(view: View[P]) -> View[P]:
    """Let in whoever is signed in."""
    return _guarded(view, lambda _: None)


def _require_admin(user: User) -> None:
    if not user.is_admin:
        raise Forbidden("People and keys are managed by admins.")


def _guarded(view: View[P], check: Callable[[User], None]) -> View[P]:
    @wraps(view)
    def guarded(
        request: SignedIn, /, *args: P.args, **kwargs: P.kwargs
    ) -> HttpResponseBase:
        try:
            check(request.user)
            return view(request, *args, **kwargs)
        except PoisonwebError as error:
            return errors.error_page(request, error)

    return guarded


def show(
    request: SignedIn,
    whole: str,
    context: dict[str, object],
    *,
    live: str,
    status: int = 200,
) -> HttpResponse:
    """Render a page; to htmx, only the part of it that lives."""
    if request.htmx:
        return render(request, "live.html", {**context, "live": live}, status=status)
    return render(request, whole, context, status=status)
