"""The help page: definitions, and how to send a first message."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from apps.core import clock
from apps.dashboard import first_message_examples
from apps.dashboard.decorators import SignedIn
from apps.dashboard.presentation import api_calls_as_curl
from apps.dashboard.presentation.definitions import CHAPTERS
from apps.poison.states import DisplayState
from poisonguard.contract import Cause


@require_safe
def index(request: SignedIn) -> HttpResponse:
    failure = first_message_examples.failure(now=clock.now())
    context = {
        "states": list(DisplayState),
        "chapters": CHAPTERS,
        "causes": list(Cause),
        "by_api": api_calls_as_curl.post(
            request, "/api/v1/failures", {"failures": [failure]}
        ),
        "by_queue": first_message_examples.DEAD_LETTER,
    }
    return render(request, "help.html", context)
