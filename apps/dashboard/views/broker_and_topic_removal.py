"""The removal of a broker or a topic: a review, then the confirmation."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from apps.brokers.models import Broker, Topic
from apps.brokers.services import broker_registration
from apps.capture import unused_topic_removal
from apps.core import clock
from apps.core.errors import Invalid, Refused
from apps.dashboard.decorators import SignedIn, needs
from apps.dashboard.domain_error_pages import status_of
from apps.dashboard.forms import removal_tokens
from apps.dashboard.forms.fields import field_of, reason_in
from apps.dashboard.presentation import api_calls_as_curl
from apps.dashboard.selectors import topics
from apps.team.rights import Scope


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_WRITE)
def broker(request: SignedIn, broker_id: int) -> HttpResponse:
    """Show the question whether to remove a broker; a POST removes it and its topics.

    Or only those of its topics that can be removed.
    """
    broker = broker_registration.one(broker_id=broker_id)
    if request.method != "POST":
        return _broker(request, broker)
    try:
        number = _remove_broker(request, broker)
    except (Refused, Invalid) as wrong:
        return _broker(request, broker, wrong=wrong)
    return (
        _back_to_broker(request, broker, number)
        if "others" in request.POST
        else redirect("brokers")
    )


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_WRITE)
def topic(request: SignedIn, topic_id: int) -> HttpResponse:
    """Show what removing a topic would remove; a POST removes it and redirects."""
    topic = topics.visible(topic_id, request.user.principal)
    if request.method != "POST":
        return _topic(request, topic)
    principal = request.user.principal
    try:
        token = request.POST.get("token", "")
        unused_topic_removal.remove_topics(
            topics=removal_tokens.signed_topics(token, _signed_name(topic), principal),
            reason=reason_in(request.POST),
            principal=principal,
            now=clock.now(),
        )
    except (Refused, Invalid) as wrong:
        return _topic(request, topic, wrong=wrong)
    return (
        _back_to_broker(request, topic.broker, 1)
        if topic.broker
        else redirect("topics")
    )


def _back_to_broker(request: SignedIn, broker: Broker, number: int) -> HttpResponse:
    """Redirect to a broker's page, with the number of removed topics."""
    text = f"Removed: {number:,}. Nothing changed at the broker."
    messages.success(request, text)
    return redirect("broker", broker.pk)


def _remove_broker(request: SignedIn, broker: Broker) -> int:
    """Remove a broker, or only its topics, as its signed review says.

    Returns the number of removed topics.
    """
    principal, now = request.user.principal, clock.now()
    token = request.POST.get("token", "")
    topic_ids = removal_tokens.signed_topics(token, _signed_name(broker), principal)
    reason = reason_in(request.POST)
    if "others" in request.POST:
        unused_topic_removal.remove_topics(
            topics=topic_ids, reason=reason, principal=principal, now=now
        )
    else:
        unused_topic_removal.remove_broker(
            broker=broker,
            previewed_ids=topic_ids,
            reason=reason,
            principal=principal,
            now=now,
        )
    return len(topic_ids)


def _broker(
    request: SignedIn, broker: Broker, *, wrong: Refused | Invalid | None = None
) -> HttpResponse:
    """Render the review of a broker's removal."""
    preview = unused_topic_removal.preview(
        Topic.objects.filter(broker=broker).select_related("lane")
    )
    context = {
        "broker": broker,
        "curl": api_calls_as_curl.delete(request, f"/api/v1/brokers/{broker.pk}"),
    }
    return _render(request, "brokers/remove.html", preview, broker, context, wrong)


def _topic(
    request: SignedIn, topic: Topic, *, wrong: Refused | Invalid | None = None
) -> HttpResponse:
    """Render the review of a topic's removal."""
    preview = unused_topic_removal.preview(Topic.objects.filter(pk=topic.pk))
    context = {
        "topic": topic,
        "curl": api_calls_as_curl.delete(
            request, "/api/v1/topics", {"name": topic.name}
        ),
    }
    return _render(request, "topics/remove.html", preview, topic, context, wrong)


def _render(
    request: SignedIn,
    template: str,
    preview: unused_topic_removal.RemovalPreview,
    of: Broker | Topic,
    context: dict[str, object],
    wrong: Refused | Invalid | None,
) -> HttpResponse:
    """Render the review of a broker's or topic's removal.

    It has a signed token of the topics that it shows.
    """
    page = {
        **context,
        "removal": preview,
        "token": removal_tokens.sign(
            _signed_name(of), preview.removable, request.user.principal
        ),
        "reason": reason_in(request.POST),
        "wrong": wrong,
        "wrong_at": field_of(wrong),
    }
    status = status_of(wrong) if wrong else 200
    return render(request, template, page, status=status)


def _signed_name(of: Broker | Topic) -> str:
    """Return a broker's or topic's kind and id, by which its removal token names it."""
    return f"{type(of).__name__} {of.pk}"
