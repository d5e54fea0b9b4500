"""The pages of API keys: the list, a new key with its secret, revocation."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from apps.core import clock
from apps.core.errors import Invalid
from apps.dashboard.decorators import SignedIn, for_admins
from apps.dashboard.domain_error_pages import status_of
from apps.dashboard.forms.people_and_keys import SCOPES, KeyForm, field_of
from apps.dashboard.selectors import people_and_keys
from apps.team import services


@require_safe
@for_admins
def index(request: SignedIn) -> HttpResponse:
    context = {
        "keys": people_and_keys.keys(now=clock.now()),
    }
    return render(request, "api_keys/list.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@for_admins
def new(request: SignedIn) -> HttpResponse:
    """Show the form of a new API key; a POST creates it and shows its secret once.

    Where the form is invalid, show what is wrong with it.
    """
    now = clock.now()
    if request.method != "POST":
        return _new(request, KeyForm(initial=KeyForm.usual(now)))
    form = KeyForm(request.POST)
    try:
        new_key = form.make(actor=request.user.principal.actor, now=now)
    except Invalid as wrong:
        return _new(request, form, wrong)
    context = {
        "new_key": new_key,
        "key": new_key.key,
        "unmatched": people_and_keys.unmatched_patterns(new_key.key),
        "sees_no_trail": people_and_keys.sees_no_trail(new_key.key),
    }
    return render(request, "api_keys/new_key_secret.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@for_admins
def revoke(request: SignedIn, key_id: int) -> HttpResponse:
    """Show the question whether to revoke an API key; a POST revokes it.

    The POST redirects to the list of keys.
    """
    row = people_and_keys.key(key_id, now=clock.now())
    if request.method != "POST":
        context = {
            "row": row,
            "key": row.key,
            "revoked_by": people_and_keys.revoked_by(row.key),
        }
        return render(request, "api_keys/revoke.html", context)
    name, actor = row.key.name, request.user.principal.actor
    if services.revoke_api_key(name=name, actor=actor, now=clock.now()):
        text = f"The key {name} is revoked: its next request is refused."
        messages.success(request, text)
    else:
        messages.info(request, f"The key {name} was revoked before.")
    return redirect("keys")


def _new(
    request: SignedIn, form: KeyForm, wrong: Invalid | None = None
) -> HttpResponse:
    """Render the form of a new API key, with what is wrong with it."""
    context = {
        "form": form,
        "scopes": SCOPES.items(),
        "wrong": wrong,
        "wrong_at": field_of(wrong),
    }
    status = status_of(wrong) if wrong else 200
    return render(request, "api_keys/new.html", context, status=status)
