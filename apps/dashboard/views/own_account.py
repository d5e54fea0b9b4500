"""The account page of the user: password and sessions."""

from __future__ import annotations

from http import HTTPStatus
from math import ceil

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from apps.core import clock
from apps.core.errors import Invalid, PoisonwebError
from apps.dashboard.decorators import SignedIn, for_everyone
from apps.dashboard.domain_error_pages import status_of
from apps.dashboard.forms.people_and_keys import ROLES, OwnPasswordForm, field_of
from apps.dashboard.selectors import people_and_keys
from apps.team import own_account, second_factor, sessions
from apps.team.rights import Role
from apps.team.sign_in_errors import TooManySignIns

DONE = {
    "password": "Your password is changed. Your other sessions have ended.",
    "session": "That session has ended.",
    "others": "All your other sessions have ended.",
}


@require_safe
@for_everyone
def index(request: SignedIn) -> HttpResponse:
    return _page(request)


@require_http_methods(["GET", "HEAD", "POST"])
@for_everyone
def password(request: SignedIn) -> HttpResponse:
    """Answer the form by which users change their own password; end other sessions.

    Redirect to the account's page, or show there what is wrong.
    """
    if request.method != "POST":
        return redirect("account")
    form = OwnPasswordForm(request.POST)
    try:
        own_account.change_password(
            request,
            username=request.user.username,
            password=form.value,
            present=form.cleaned_data["present"],
            now=clock.now(),
        )
    except (Invalid, TooManySignIns) as wrong:
        return _page(request, wrong)
    return _redirect_with_notice(request, "password")


@require_http_methods(["GET", "HEAD", "POST"])
@for_everyone
def end_sessions(request: SignedIn) -> HttpResponse:
    """Answer the form by which users end one of their sessions, or all others.

    Redirect to the account's page.
    """
    if request.method != "POST":
        return redirect("account")
    user, now = request.user, clock.now()
    if "others" in request.POST:
        own_account.end_other_sessions(request, username=user.username, now=now)
        return _redirect_with_notice(request, "others")
    sessions.end_session(
        user=user,
        mark=request.POST.get("mark", ""),
        actor=user.principal.actor,
        now=now,
    )
    return _redirect_with_notice(request, "session")


def _redirect_with_notice(request: SignedIn, done: str) -> HttpResponse:
    """Redirect to the user's own account page, with a notice of what was done."""
    messages.success(request, DONE[done])
    return redirect("account")


def _page(request: SignedIn, wrong: PoisonwebError | None = None) -> HttpResponse:
    """Render the user's own account page, with what is wrong with a form.

    After too many tries of a password, with status 429 and `Retry-After`.
    """
    user, here = request.user, request.session.session_key or ""
    sessions_of_user = people_and_keys.own_sessions(user, here=here, now=clock.now())
    context = {
        "person": user,
        "has_second_factor": second_factor.is_set(user),
        "may": ROLES[Role(user.role)],
        "sessions": sessions_of_user[: people_and_keys.MOST_SESSIONS],
        "number": len(sessions_of_user),
        "wrong": wrong,
        "wrong_at": field_of(wrong),
    }
    if isinstance(wrong, TooManySignIns):
        status = HTTPStatus.TOO_MANY_REQUESTS
        response = render(request, "account/own_account.html", context, status=status)
        response["Retry-After"] = str(ceil(wrong.delay.total_seconds()))
        return response
    status_ = status_of(wrong) if wrong else 200
    return render(request, "account/own_account.html", context, status=status_)
