"""The sign-in, and the display preferences of a user."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus
from math import ceil
from typing import Any
from urllib.parse import urlencode

from csp.decorators import csp_update
from django.conf import settings
from django.contrib.auth import login
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core import clock
from apps.core.errors import PoisonwebError
from apps.dashboard.decorators import SignedIn
from apps.dashboard.domain_error_pages import error_page
from apps.dashboard.forms import triage_operation
from apps.dashboard.forms.sign_in import CodeForm, SignInForm
from apps.dashboard.preferences import ONE_YEAR, cookies_to_set
from apps.team import second_factor, second_factor_session, sign_in_attempts


class SignIn(LoginView):
    """Ask for name and password; show the delay after too many wrong ones."""

    template_name = "registration/sign_in.html"
    form_class = SignInForm
    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        oidc = settings.POISONWEB_OIDC
        name = None if oidc is None else oidc.name
        return super().get_context_data(provider=name, **kwargs)

    def render_to_response(
        self, context: dict[str, Any], **kwargs: Any
    ) -> HttpResponse:
        """Render the sign-in form; CSP lets it lead to the provider's site only.

        That is the OpenID provider.
        """
        response = super().render_to_response(context, **kwargs)
        oidc = settings.POISONWEB_OIDC
        if oidc is None:
            return response
        # The decorator marks the response for the middleware.
        csp_update({"form-action": [oidc.origin]})(lambda _: response)(self.request)
        return response

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Sign the person of the form in, or redirect to the second factor's form."""
        user = form.get_user()
        if not second_factor.is_set(user):
            return super().form_valid(form)
        second_factor_session.require_code(self.request, user, now=clock.now())
        query = urlencode({self.redirect_field_name: self.get_redirect_url()})
        return redirect(f"{reverse('sign-in-code')}?{query}")

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        return _with_delay(super().form_invalid(form), form)


class SignInCode(LoginView):
    """Ask for a code of the second factor, after the right password."""

    template_name = "registration/sign_in_second_factor.html"
    form_class = CodeForm  # type: ignore[assignment]  # it has all that LoginView uses
    redirect_authenticated_user = True

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if second_factor_session.user_awaiting_code(request, now=clock.now()) is None:
            return redirect("sign-in")
        return super().get(request, *args, **kwargs)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().post(request, *args, **kwargs)
        except PoisonwebError as unreadable:
            return error_page(request, unreadable)

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        login(self.request, form.get_user(), backend=sign_in_attempts.BY_PASSWORD)
        second_factor_session.note_proof(self.request)
        return redirect(self.get_success_url())

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        return _with_delay(super().form_invalid(form), form)


def _with_delay(response: HttpResponse, form: AuthenticationForm) -> HttpResponse:
    """Add `Retry-After` and status 429 to a response if sign-in must wait."""
    delay: timedelta | None = getattr(form, "delay", None)
    if delay is not None:
        response.status_code = HTTPStatus.TOO_MANY_REQUESTS
        response["Retry-After"] = str(ceil(delay.total_seconds()))
    return response


@require_POST
def preferences(request: SignedIn) -> HttpResponse:
    """Answer the form of display preferences: store cookies, and redirect back."""
    response = redirect(triage_operation.back_url(request))
    for cookie, value in cookies_to_set(request.POST).items():
        response.set_cookie(
            cookie,
            value,
            max_age=ONE_YEAR,
            samesite="Lax",
            secure=settings.SESSION_COOKIE_SECURE,
        )
    return response
