"""The pages of people: the list, a new person, and changes of one."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from apps.core import clock
from apps.core.errors import Invalid, PoisonwebError, Refused
from apps.dashboard.decorators import SignedIn, for_admins
from apps.dashboard.domain_error_pages import status_of
from apps.dashboard.forms.people_and_keys import (
    ROLES,
    NewPersonForm,
    PasswordForm,
    RightsForm,
    field_of,
)
from apps.dashboard.selectors import people_and_keys
from apps.dashboard.selectors.people_and_keys import PersonRow
from apps.team import services
from apps.team.models import User

DONE = {
    "same": "is as before: nothing was changed.",
    "added": "is added, and can sign in now.",
    "rights": "has these rights from the next page on.",
    "disabled": "is disabled and signed out everywhere.",
    "enabled": "may sign in again.",
    "password": "has another password, and is signed out everywhere.",
    "sessions": "is signed out everywhere.",
}


@require_safe
@for_admins
def index(request: SignedIn) -> HttpResponse:
    context = {
        "people": people_and_keys.people(now=clock.now()),
        "roles": ROLES.items(),
    }
    return render(request, "people/list.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@for_admins
def new(request: SignedIn) -> HttpResponse:
    """Show the form of a new person; a POST adds them and redirects to their page."""
    if request.method != "POST":
        return _new(request, NewPersonForm())
    form = NewPersonForm(request.POST)
    try:
        user = form.add(actor=request.user.principal.actor, now=clock.now())
    except Invalid as wrong:
        return _new(request, form, wrong)
    return _redirect_to(request, user, "added")


@require_safe
@for_admins
def detail(request: SignedIn, user_id: int) -> HttpResponse:
    return _detail(request, people_and_keys.person(user_id, now=clock.now()))


@require_http_methods(["GET", "HEAD", "POST"])
@for_admins
def rights(request: SignedIn, user_id: int) -> HttpResponse:
    """Answer the form that sets a person's role and rights; redirect to their page.

    Show there what is wrong if it is refused. Admins who stop being admins go to their
    own account.
    """
    row = people_and_keys.person(user_id, now=clock.now())
    if request.method != "POST":
        return redirect("person", user_id)
    form = RightsForm(request.POST)
    try:
        user = form.save(row.user, actor=request.user.principal.actor, now=clock.now())
    except (Invalid, Refused) as wrong:
        return _detail(request, row, form=form, wrong=wrong)
    if _is_own(request, user) and not user.is_admin:
        return redirect("account")
    same = (user.role, user.reads_bodies) == (row.user.role, row.user.reads_bodies)
    return _redirect_to(request, user, "same" if same else "rights")


@require_http_methods(["GET", "HEAD", "POST"])
@for_admins
def active(request: SignedIn, user_id: int) -> HttpResponse:
    """Answer the form that disables or enables a person; redirect to their page.

    Show there what is wrong if it is refused.
    """
    row = people_and_keys.person(user_id, now=clock.now())
    if request.method != "POST":
        return redirect("person", user_id)
    enable = "enable" in request.POST
    try:
        services.alter_user(
            username=row.user.username,
            is_active=enable,
            actor=request.user.principal.actor,
            now=clock.now(),
        )
    except Refused as wrong:
        return _detail(request, row, wrong=wrong)
    if row.user.is_active == enable:
        return _redirect_to(request, row.user, "same")
    return _redirect_to(request, row.user, "enabled" if enable else "disabled")


@require_http_methods(["GET", "HEAD", "POST"])
@for_admins
def password(request: SignedIn, user_id: int) -> HttpResponse:
    """Answer the form by which an admin sets a person's new password.

    Redirect to the person's page, or show there what is wrong.
    """
    row = people_and_keys.person(user_id, now=clock.now())
    if request.method != "POST":
        return redirect("person", user_id)
    try:
        services.set_password(
            user=row.user,
            password=PasswordForm(request.POST).value,
            actor=request.user.principal.actor,
            now=clock.now(),
        )
    except Invalid as wrong:
        return _detail(request, row, wrong=wrong)
    return _redirect_to(request, row.user, "password")


@require_http_methods(["GET", "HEAD", "POST"])
@for_admins
def end_sessions(request: SignedIn, user_id: int) -> HttpResponse:
    """Answer the form by which an admin ends all sessions of a person.

    Redirects to the person's page.
    """
    row = people_and_keys.person(user_id, now=clock.now())
    if request.method != "POST":
        return redirect("person", user_id)
    services.end_sessions(
        username=row.user.username,
        actor=request.user.principal.actor,
        now=clock.now(),
    )
    return _redirect_to(request, row.user, "sessions")


def _redirect_to(request: SignedIn, user: User, done: str) -> HttpResponse:
    """Redirect to the page of a person, with a message about what was done."""
    say = messages.info if done == "same" else messages.success
    say(request, f"{user.username} {DONE[done]}")
    return redirect("person", user.pk)


def _is_own(request: SignedIn, user: User) -> bool:
    """Tell whether a person's account is that of the user of this request."""
    return user.pk == request.user.pk


def _new(
    request: SignedIn, form: NewPersonForm, wrong: Invalid | None = None
) -> HttpResponse:
    """Render the form of a new person, with what is wrong with it."""
    context = {
        "form": form,
        "roles": ROLES.items(),
        "wrong": wrong,
        "wrong_at": field_of(wrong),
    }
    status = status_of(wrong) if wrong else 200
    return render(request, "people/new.html", context, status=status)


def _detail(
    request: SignedIn,
    row: PersonRow,
    *,
    form: RightsForm | None = None,
    wrong: PoisonwebError | None = None,
) -> HttpResponse:
    """Render the page of a person, with what is wrong with a form."""
    context = {
        "row": row,
        "person": row.user,
        "is_own": _is_own(request, row.user),
        "form": form or RightsForm.of(row.user),
        "roles": ROLES.items(),
        "wrong": wrong,
        "wrong_at": field_of(wrong),
    }
    status = status_of(wrong) if wrong else 200
    return render(request, "people/detail.html", context, status=status)
