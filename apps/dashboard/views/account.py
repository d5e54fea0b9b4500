"""A person's own: how the pages look to them."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from apps.dashboard import asks
from apps.dashboard.doors import SignedIn
from apps.dashboard.preferences import ONE_YEAR, wanted


@require_POST
def preferences(request: SignedIn) -> HttpResponse:
    response = redirect(asks.back(request))
    for cookie, value in wanted(request.POST).items():
        response.set_cookie(
            cookie,
            value,
            max_age=ONE_YEAR,
            samesite="Lax",
            secure=settings.SESSION_COOKIE_SECURE,
        )
    return response
