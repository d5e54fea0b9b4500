"""Single sign-on: the redirect to the provider, and the callback."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.module_loading import import_string
from django.views.decorators.http import require_POST, require_safe

from apps.core.errors import PoisonwebError
from apps.dashboard.domain_error_pages import error_page


@login_not_required
@require_POST
def begin(request: HttpRequest) -> HttpResponse:
    """Answer the sign-in button: redirect to the single sign-on provider's site."""
    next_url = request.POST.get("next", "")
    if not url_has_allowed_host_and_scheme(next_url, allowed_hosts=None):
        next_url = reverse("home")
    try:
        return _of_provider("begin", request, next_url=next_url)
    except PoisonwebError as error:
        return error_page(request, error)


@login_not_required
@require_safe
def callback(request: HttpRequest) -> HttpResponse:
    """Answer the single sign-on provider's redirect: complete the sign-in with it."""
    try:
        return _of_provider("complete", request)
    except PoisonwebError as error:
        return error_page(request, error)


def _of_provider(act: str, request: HttpRequest, **kwargs: str) -> HttpResponse:
    """Call a function of the OpenID client, which is imported only now.

    Celery runs Django's checks, which load every URL, and workers need no client.
    """
    response: HttpResponse = import_string(f"apps.team.openid.{act}")(request, **kwargs)
    return response
