"""The first steps of a new user, hidden by a cookie once they dismissed them."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from apps.core.statement_timeouts import TooSlow
from apps.dashboard.preferences import ONE_YEAR
from apps.dashboard.selectors import onboarding
from apps.dashboard.selectors.onboarding import FirstSteps
from apps.team.rights import Principal

COOKIE = "pw_first_steps"
DISMISSED = "dismissed"


def steps_for(
    request: HttpRequest, principal: Principal
) -> FirstSteps | TooSlow | None:
    """Return the first steps of onboarding; None if dismissed or all done."""
    if request.COOKIES.get(COOKIE) == DISMISSED:
        return None
    return onboarding.find(principal)


def dismiss(response: HttpResponse) -> HttpResponse:
    """Set the cookie that hides onboarding's first steps for a year."""
    response.set_cookie(
        COOKIE,
        DISMISSED,
        max_age=ONE_YEAR,
        samesite="Lax",
        secure=settings.SESSION_COOKIE_SECURE,
    )
    return response
