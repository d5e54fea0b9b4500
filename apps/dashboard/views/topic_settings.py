"""Change a topic's capture mode, pause and policies, and show its samples."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from apps.brokers.models import Topic
from apps.brokers.services.topics_and_routing_publisher import convention_of_topic
from apps.brokers.topic_policies import Policies, limits_of, takes_host_json
from apps.capture.lanes import dead_letter_sample_reveal as letters
from apps.capture.lanes import lane_mode_and_pause
from apps.capture.models import Mode
from apps.core import clock
from apps.core.errors import Absent, Invalid, Unavailable
from apps.dashboard.decorators import SignedIn, needs
from apps.dashboard.domain_error_pages import status_of
from apps.dashboard.forms.fields import field_of, reason_in
from apps.dashboard.forms.topic_policies_and_lane_mode import (
    ModeForm,
    PoliciesForm,
    dead_letter_queue_of,
)
from apps.dashboard.presentation import api_calls_as_curl
from apps.dashboard.selectors import stored_dead_letter_samples, topics
from apps.team.rights import Scope

API = "/api/v1/topics"


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_WRITE)
def mode(request: SignedIn, topic_id: int) -> HttpResponse:
    """Show the question whether to change a topic's lane mode; a POST changes it.

    The POST redirects to the topic's page.
    """
    topic = topics.visible(topic_id, request.user.principal)
    form = ModeForm.read(request.POST if request.method == "POST" else request.GET)
    if request.method != "POST":
        return _mode(request, topic, form)
    try:
        form.set(topic, request.user.principal, now=clock.now())
    except Invalid as wrong:
        return _mode(request, topic, form, wrong=wrong)
    return redirect("topic", topic_id)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_WRITE)
def pause(request: SignedIn, topic_id: int) -> HttpResponse:
    """Answer the form that pauses or resumes a topic's lane; redirect to its page."""
    topic = topics.visible(topic_id, request.user.principal)
    if request.method == "POST":
        act = (
            lane_mode_and_pause.resume
            if "resume" in request.POST
            else lane_mode_and_pause.pause
        )
        act(
            topic=topic,
            reason=reason_in(request.POST),
            principal=request.user.principal,
            now=clock.now(),
        )
    return redirect("topic", topic_id)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_WRITE)
def policies(request: SignedIn, topic_id: int) -> HttpResponse:
    """Show the form of a topic's policies; a POST changes them.

    The POST redirects to the topic's page.
    """
    topic = topics.visible(topic_id, request.user.principal)
    limits = limits_of(topic)
    if request.method != "POST":
        return _policies(request, topic, PoliciesForm.of(Policies.of(topic), limits))
    form = PoliciesForm.read(request.POST, limits)
    try:
        form.save(topic, request.user.principal, now=clock.now())
    except (Invalid, Unavailable) as wrong:
        return _policies(request, topic, form, wrong=wrong)
    return redirect("topic", topic_id)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.POISONS_READ)
def samples(request: SignedIn, topic_id: int) -> HttpResponse:
    """Show the page of a topic's dead-letter samples; a POST reveals their contents."""
    principal = request.user.principal
    topic = topics.visible(topic_id, principal)
    rows = (
        stored_dead_letter_samples.rows_of_revealed(
            letters.reveal(topic=topic, principal=principal, now=clock.now())
        )
        if request.method == "POST"
        else stored_dead_letter_samples.of(topic)
    )
    context = {
        "topic": topic,
        "samples": rows,
        "is_revealed": request.method == "POST",
        "reads_bodies": principal.may(Scope.BODIES_READ),
    }
    return render(request, "topics/dead_letter_samples.html", context)


def _mode(
    request: SignedIn, topic: Topic, form: ModeForm, *, wrong: Invalid | None = None
) -> HttpResponse:
    """Render the question whether to change a topic's lane mode.

    Raises Absent without a dead-letter queue.
    """
    queue = dead_letter_queue_of(topic)
    if not queue:
        raise Absent("Name its broker and its dead-letter queue first.")
    body = {"name": topic.name, "mode": form.mode.value, "reason": form.reason}
    if form.mode is Mode.TEE:
        body["tee_queue"] = form.tee_queue
    context = {
        "topic": topic,
        "queue": queue,
        "lane": getattr(topic, "lane", None),
        "form": form,
        "wrong": wrong,
        "wrong_at": field_of(wrong),
        "curl": api_calls_as_curl.patch(request, API, dict(body)),
    }
    status = status_of(wrong) if wrong else 200
    return render(request, "topics/lane_mode_confirmation.html", context, status=status)


def _policies(
    request: SignedIn,
    topic: Topic,
    form: PoliciesForm,
    *,
    wrong: Invalid | Unavailable | None = None,
) -> HttpResponse:
    """Render the form of a topic's policies, with what is wrong with it."""
    context = {
        "topic": topic,
        "form": form,
        "values": form.values,
        "convention": convention_of_topic(topic),
        "pastes": takes_host_json(topic),
        "wrong": wrong,
        "wrong_at": field_of(wrong),
        "curl": api_calls_as_curl.patch(
            request, API, {"name": topic.name, "owner": topic.owner}
        ),
    }
    status = status_of(wrong) if wrong else 200
    return render(request, "topics/topic_settings_form.html", context, status=status)
