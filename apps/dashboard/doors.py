"""The way into a page: who asks, whether they may, and how a refusal is told."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django_htmx.middleware import HtmxDetails

from apps.core.errors import PoisonwebError
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
        @wraps(view)
        def guarded(
            request: SignedIn, /, *args: P.args, **kwargs: P.kwargs
        ) -> HttpResponseBase:
            try:
                request.user.principal.require(scope)
                return view(request, *args, **kwargs)
            except PoisonwebError as error:
                return errors.told(request, error)

        return guarded

    return decorate


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
