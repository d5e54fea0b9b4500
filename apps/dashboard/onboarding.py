"""Whether somebody wants to see the first steps; kept in a cookie, as preferences."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from apps.core.timeouts import TooSlow
from apps.dashboard.preferences import ONE_YEAR
from apps.dashboard.selectors import onboarding
from apps.dashboard.selectors.onboarding import FirstSteps
from apps.team.rights import Principal

COOKIE = "pw_first_steps"
DISMISSED = "dismissed"


def steps_for(
    request: HttpRequest, principal: Principal
) -> FirstSteps | TooSlow | None:
    """Give the steps that are left, unless this person put them away."""
    if request.COOKIES.get(COOKIE) == DISMISSED:
        return None
    return onboarding.find(principal)


def dismiss(response: HttpResponse) -> HttpResponse:
    response.set_cookie(
        COOKIE,
        DISMISSED,
        max_age=ONE_YEAR,
        samesite="Lax",
        secure=settings.SESSION_COOKIE_SECURE,
    )
    return response
