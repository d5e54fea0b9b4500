"""What the words mean, and how the first message comes in."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from apps.core import clock
from apps.dashboard import curl, first
from apps.dashboard.definitions import CHAPTERS
from apps.dashboard.doors import SignedIn
from apps.poison.states import Shown
from poisonguard.contract import Cause


@require_safe
def index(request: SignedIn) -> HttpResponse:
    failure = first.failure(now=clock.now())
    context = {
        "states": list(Shown),
        "chapters": CHAPTERS,
        "causes": list(Cause),
        "by_api": curl.post(request, "/api/v1/failures", {"failures": [failure]}),
        "by_queue": first.DEAD_LETTER,
    }
    return render(request, "help/page.html", context)
