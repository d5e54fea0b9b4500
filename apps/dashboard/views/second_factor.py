"""The pages of a person's second factor and its recovery codes."""

from __future__ import annotations

from http import HTTPStatus
from math import ceil

from django.contrib.auth import authenticate
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from apps.core import clock
from apps.core.errors import Absent, Invalid, PoisonwebError
from apps.dashboard.decorators import SignedIn
from apps.dashboard.domain_error_pages import error_page, status_of
from apps.dashboard.forms.sign_in import ProofForm
from apps.team import (
    second_factor,
    second_factor_session,
    sign_in_attempts,
    single_sign_on_accounts,
)
from apps.team.sign_in_attempts import SignInAttempt
from apps.team.sign_in_errors import TooManySignIns

PAGE = "Second factor"


@require_http_methods(["GET", "HEAD", "POST"])
def index(request: SignedIn) -> HttpResponse:
    """Show the user's second factor; a POST adds one and shows its codes once.

    These are the recovery codes.
    """
    if request.method != "POST":
        return _page(request)
    try:
        form = ProofForm.read(request.POST)
        _check_password(request, form.cleaned_data["password"])
        codes = second_factor.add(
            user=request.user,
            secret=second_factor_session.new_secret(request),
            code=form.cleaned_data["code"],
            now=clock.now(),
        )
    except PoisonwebError as wrong:
        return _page(request, wrong=wrong)
    second_factor_session.stay_signed_in(request, request.user)
    second_factor_session.note_proof(request)
    return _codes(request, codes)


@require_safe
def qr_code(request: SignedIn) -> HttpResponse:
    """Answer with the QR code of a second factor to be added, as an image.

    CSP forbids it inline. Without such a factor, answer with the error page.
    """
    secret = second_factor_session.offered_secret(request)
    if secret is None:
        return error_page(request, Absent("There is no second factor to be added."))
    drawing = second_factor.qr_code(request.user, secret)
    return HttpResponse(drawing, content_type="image/svg+xml")


@require_POST
def recovery_codes(request: SignedIn) -> HttpResponse:
    """Answer the form that replaces the second factor's recovery codes.

    Show the new codes once, or what is wrong with the form.
    """
    try:
        _check_both(request)
        codes = second_factor.renew_recovery_codes(user=request.user, now=clock.now())
    except PoisonwebError as wrong:
        return _page(request, wrong=wrong)
    return _codes(request, codes)


@require_POST
def remove(request: SignedIn) -> HttpResponse:
    """Answer the form that removes the user's second factor; redirect to its page.

    Show there what is wrong otherwise. The user's session continues.
    """
    try:
        _check_both(request)
        second_factor.remove(user=request.user, now=clock.now())
    except PoisonwebError as wrong:
        return _page(request, wrong=wrong)
    second_factor_session.stay_signed_in(request, request.user)
    second_factor_session.forget_proof(request)
    return redirect("second-factor")


def _check_both(request: SignedIn) -> None:
    """Raise Invalid unless the form has the person's password and a valid code."""
    form = ProofForm.read(request.POST)
    _check_password(request, form.cleaned_data["password"])
    attempt = SignInAttempt.of_code(request, account=request.user.username, page=PAGE)
    code = form.cleaned_data["code"]
    if not second_factor.prove(
        user=request.user, code=code, attempt=attempt, now=clock.now()
    ):
        raise Invalid("code", "that code is not right, or was used before")


def _check_password(request: SignedIn, password: str) -> None:
    """Raise Invalid for a wrong password, which counts as a failed sign-in."""
    username = request.user.username
    if not authenticate(request, username=username, password=password, page=PAGE):
        raise Invalid("password", "that is not your password")


def _page(request: SignedIn, *, wrong: PoisonwebError | None = None) -> HttpResponse:
    """Render the page of the second factor, with what is wrong with a form."""
    try:
        context = _factor(request)
    except PoisonwebError as unreadable:
        return error_page(request, unreadable)
    response = _render(
        request, "second_factor/settings.html", {**context, "wrong": wrong}
    )
    if isinstance(wrong, TooManySignIns):
        response.status_code = HTTPStatus.TOO_MANY_REQUESTS
        response["Retry-After"] = str(ceil(wrong.delay.total_seconds()))
    elif wrong is not None:
        response.status_code = status_of(wrong)
    return response


def _factor(request: SignedIn) -> dict[str, object]:
    """Return the template context of the user's second factor.

    It has the recovery codes that remain, or a new secret where no factor is set, or
    the single sign-on provider if that checks it.
    """
    user = request.user
    if sign_in_attempts.is_by_provider(request):
        return {
            "is_by_provider": True,
            "provider": single_sign_on_accounts.provider_settings().name,
        }
    if second_factor.is_set(user):
        return {"is_set": True, "codes_left": second_factor.recovery_codes_left(user)}
    secret = second_factor_session.new_secret(request)
    return {"secret": secret, "link": second_factor.link(user, secret)}


def _codes(request: SignedIn, codes: list[str]) -> HttpResponse:
    """Render the second factor's recovery codes, which are shown once."""
    return _render(request, "second_factor/recovery_codes.html", {"codes": codes})


def _render(
    request: HttpRequest, template: str, context: dict[str, object]
) -> HttpResponse:
    """Render a page about the second factor; without navigation while it is missing."""
    is_missing = second_factor_session.is_missing(request)
    layout = (
        "base_without_navigation.html" if is_missing else "base_with_navigation.html"
    )
    return render(
        request, template, {**context, "layout": layout, "is_missing": is_missing}
    )
