"""The pages of brokers: list, detail, form, connection test, discovery."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from apps.brokers import adapters, allow_lists_of_older_brokers, ping_and_discovery
from apps.brokers.models import Broker
from apps.brokers.ping_and_discovery import Reached
from apps.brokers.services import broker_registration
from apps.capture.lanes import lane_mode_and_pause
from apps.core import clock
from apps.core.errors import Invalid, PoisonwebError, Refused, Unavailable
from apps.dashboard.decorators import SignedIn, needs, show
from apps.dashboard.domain_error_pages import status_of
from apps.dashboard.forms.brokers import BrokerForm, chosen_allowances
from apps.dashboard.forms.fields import field_of
from apps.dashboard.presentation import api_calls_as_curl
from apps.dashboard.selectors import brokers
from apps.team.rights import Scope

API = "/api/v1/brokers"
ADDED = (
    "The broker is added. Test its connection, then discover its dead-letter queues."
)
OBSERVED = (
    "Observed from now on: {:,}. Nothing is removed from their dead-letter queues."
)
NOTHING_OBSERVED = (
    "Nothing new to observe: the chosen topics are observed already, or have no "
    "dead-letter queue of their own; these are now known here."
)


@require_safe
@needs(Scope.BROKERS_READ)
def index(request: SignedIn) -> HttpResponse:
    """Show the list of brokers, and allow-lists of those that older rules admitted."""
    principal = request.user.principal
    context = {
        "rows": brokers.find(principal, now=clock.now()),
        "may_write": principal.may(Scope.BROKERS_WRITE),
        "allowances": allow_lists_of_older_brokers.entries(principal),
        "curl": api_calls_as_curl.get(request, API),
    }
    return show(
        request, "brokers/list.html", context, live="brokers/_brokers_table.html"
    )


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_WRITE)
def allowances(request: SignedIn) -> HttpResponse:
    """Answer the form that confirms or strikes hosts and variables on brokers' lists.

    Upgrades allowed what a broker used. Redirects to the list of brokers.
    """
    if request.method == "POST":
        act = (
            allow_lists_of_older_brokers.strike
            if "strike" in request.POST
            else allow_lists_of_older_brokers.confirm
        )
        act(
            chosen=chosen_allowances(request.POST),
            principal=request.user.principal,
            now=clock.now(),
        )
    return redirect("brokers")


@require_safe
@needs(Scope.BROKERS_READ)
def detail(request: SignedIn, broker_id: int) -> HttpResponse:
    return _detail(request, broker_id)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_WRITE)
def new(request: SignedIn) -> HttpResponse:
    """Show the form of a new broker; a POST adds it and redirects to its page."""
    if request.method != "POST":
        kind = request.GET.get("kind", "")
        return _form(request, BrokerForm(kind=kind))
    form = BrokerForm.read(request.POST)
    try:
        broker = form.add(request.user.principal, now=clock.now())
    except Invalid as wrong:
        return _form(request, form, wrong=wrong)
    messages.success(request, ADDED)
    return redirect("broker", broker.pk)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_WRITE)
def edit(request: SignedIn, broker_id: int) -> HttpResponse:
    """Show the form of a broker; a POST changes it and redirects to its page."""
    broker = broker_registration.one(broker_id=broker_id)
    if request.method != "POST":
        return _form(request, BrokerForm.of(broker), broker)
    form = BrokerForm.read(request.POST)
    try:
        form.alter(broker, request.user.principal, now=clock.now())
    except Invalid as wrong:
        return _form(request, form, broker, wrong=wrong)
    return redirect("broker", broker_id)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_WRITE)
def test(request: SignedIn, broker_id: int) -> HttpResponse:
    """Answer a POST with a broker's page and the result of a connection test.

    No result is stored. A GET redirects to the page.
    """
    if request.method != "POST":
        return redirect("broker", broker_id)  # a reload of the result
    reached = ping_and_discovery.reach(
        broker=broker_registration.one(broker_id=broker_id)
    )
    return _detail(request, broker_id, reached=reached)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_READ)
def discover(request: SignedIn, broker_id: int) -> HttpResponse:
    """Show the question whether to list a broker's topics; a POST lists them.

    Only the POST connects to the broker.
    """
    broker = broker_registration.one(broker_id=broker_id)
    if request.method != "POST":
        return render(
            request, "brokers/discover_topics_question.html", {"broker": broker}
        )
    return _discover(request, broker)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_WRITE)
def observe(request: SignedIn, broker_id: int) -> HttpResponse:
    """Answer the form that chooses a broker's topics to register and observe.

    Observe those with a dead-letter queue, and redirect to the broker's page; show the
    topics and what is wrong otherwise. A GET redirects to the topics.
    """
    if request.method != "POST":
        return redirect("broker-discover", broker_id)  # a reload of a refusal
    broker = broker_registration.one(broker_id=broker_id)
    try:
        number = _observe(request, broker)
    except (Invalid, Refused, Unavailable) as wrong:
        return _discover(request, broker, wrong=wrong)
    if number:
        messages.success(request, OBSERVED.format(number))
    else:
        messages.info(request, NOTHING_OBSERVED)
    return redirect("broker", broker_id)


def _observe(request: SignedIn, broker: Broker) -> int:
    """Register a broker's chosen topics, and observe their dead-letter queues.

    Only of topics that have one; returns how many are observed. Raises Invalid without
    a topic, and Refused if all means others than the page showed.
    """
    principal, now = request.user.principal, clock.now()
    if "everything" in request.POST:
        mark = request.POST["everything"]
        chosen = brokers.all_new(broker, mark, principal, now=now)
    else:
        marks = request.POST.getlist("topics")
        chosen = brokers.topics_to_observe(broker, marks, principal, now=now)
        if not chosen:
            raise Invalid("topics", "choose at least one of them.")
    topics = broker_registration.adopt_topics(
        broker=broker, topics=chosen, principal=principal, now=now
    )
    return lane_mode_and_pause.observe_all(topics=topics, principal=principal, now=now)


def _detail(
    request: SignedIn,
    broker_id: int,
    *,
    reached: Reached | None = None,
) -> HttpResponse:
    """Render the page of a broker, with the result of a connection test if any."""
    principal = request.user.principal
    detail = brokers.one(broker_id, principal, now=clock.now())
    context = {
        "detail": detail,
        "row": detail.row,
        "broker": detail.row.broker,
        "may_write": principal.may(Scope.BROKERS_WRITE),
        "reached": reached,
        "curl": api_calls_as_curl.post(request, f"{API}/{broker_id}/test", {}),
    }
    return render(request, "brokers/detail.html", context)


def _form(
    request: SignedIn,
    form: BrokerForm,
    broker: Broker | None = None,
    *,
    wrong: Invalid | None = None,
) -> HttpResponse:
    """Render the form of a broker, with what is wrong with it."""
    context = {
        "form": form,
        "broker": broker,
        "offered": brokers.offered_kinds(),
        "example": adapters.kind_named(broker.kind).url if broker else "",
        "wrong": wrong,
        "wrong_at": field_of(wrong),
        # An address is never shown again: a person who typed one must type it again.
        "again": wrong is not None and form.url != form.shown_url,
    }
    status = status_of(wrong) if wrong else 200
    return render(request, "brokers/form.html", context, status=status)


def _discover(
    request: SignedIn, broker: Broker, *, wrong: PoisonwebError | None = None
) -> HttpResponse:
    """Ask a broker for its topics; render them, or why there are none."""
    principal, name = request.user.principal, request.POST.get("name", "")
    discovery = None
    try:
        discovery = brokers.discover_topics(broker, name, principal, now=clock.now())
    except (Invalid, Refused, Unavailable) as trouble:
        wrong = wrong or trouble
    context = {
        "broker": broker,
        "discovery": discovery,
        "name": name,
        "wrong": wrong,
        "may_write": principal.may(Scope.BROKERS_WRITE),
        "curl": api_calls_as_curl.get(request, f"{API}/{broker.pk}/discover"),
    }
    status = status_of(wrong) if wrong else 200
    return render(request, "brokers/discovered_topics.html", context, status=status)
