"""Single sign-on: to the provider, and back."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.module_loading import import_string
from django.views.decorators.http import require_POST, require_safe

from apps.core.errors import PoisonwebError
from apps.dashboard.views import errors


@login_not_required
@require_POST
def begin(request: HttpRequest) -> HttpResponse:
    wanted = request.POST.get("next", "")
    if not url_has_allowed_host_and_scheme(wanted, allowed_hosts=None):
        wanted = reverse("home")
    try:
        return _of_provider("begin", request, next_url=wanted)
    except PoisonwebError as error:
        return errors.told(request, error)


@login_not_required
@require_safe
def callback(request: HttpRequest) -> HttpResponse:
    try:
        return _of_provider("complete", request)
    except PoisonwebError as error:
        return errors.told(request, error)


def _of_provider(act: str, request: HttpRequest, **wanted: str) -> HttpResponse:
    """Load what speaks to the provider with its first use: workers have none for it.

    They load each address, for Celery runs Django's checks.
    """
    response: HttpResponse = import_string(f"apps.team.openid.{act}")(request, **wanted)
    return response
