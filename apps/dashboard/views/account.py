"""A person's own: the sign-in, and how the pages look to them."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus
from math import ceil

from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.http import HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from apps.dashboard import asks
from apps.dashboard.doors import SignedIn
from apps.dashboard.forms import SignInForm
from apps.dashboard.preferences import ONE_YEAR, wanted


class SignIn(LoginView):
    """Ask for name and password; says so where there were too many wrong ones."""

    template_name = "registration/sign_in.html"
    form_class = SignInForm
    redirect_authenticated_user = True

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        response = super().form_invalid(form)
        delay: timedelta | None = getattr(form, "delay", None)
        if delay is not None:
            response.status_code = HTTPStatus.TOO_MANY_REQUESTS
            response["Retry-After"] = str(ceil(delay.total_seconds()))
        return response


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
