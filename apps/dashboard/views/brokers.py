"""Brokers: the list, one of them, a new one, a try of it, and what it has."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from apps.brokers import adapters, allow_list, connectivity
from apps.brokers.connectivity import Reached
from apps.brokers.models import Broker
from apps.brokers.services import registration
from apps.capture.lanes import lane_settings
from apps.core import clock
from apps.core.errors import Invalid, PoisonwebError, Refused, Unavailable
from apps.dashboard.decorators import SignedIn, needs, show
from apps.dashboard.forms.brokers import BrokerForm, chosen_allowances, field_of
from apps.dashboard.presentation import curl
from apps.dashboard.selectors import brokers
from apps.dashboard.views import errors
from apps.team.rights import Scope

API = "/api/v1/brokers"
ADDED = "It is added. See whether it answers, then which dead-letter queues it has."
OBSERVED = (
    "Observed from now on: {:,}. Nothing is removed from their dead-letter queues."
)
NOTHING_OBSERVED = (
    "Nothing new to observe: what you chose is observed already, or is only known here "
    "now, for it has no dead-letter queue of its own."
)


@require_safe
@needs(Scope.BROKERS_READ)
def index(request: SignedIn) -> HttpResponse:
    principal = request.user.principal
    context = {
        "rows": brokers.find(principal, now=clock.now()),
        "may_write": principal.may(Scope.BROKERS_WRITE),
        "allowances": allow_list.entries(principal),
        "curl": curl.get(request, API),
    }
    return show(request, "brokers/list.html", context, live="brokers/_rows.html")


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_WRITE)
def allowances(request: SignedIn) -> HttpResponse:
    """Confirm entries of allow-lists, or strike them out."""
    if request.method == "POST":
        act = allow_list.strike if "strike" in request.POST else allow_list.confirm
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
    broker = registration.one(broker_id=broker_id)
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
    """Reach it now, while somebody waits: nothing of it is kept."""
    if request.method != "POST":
        return redirect("broker", broker_id)  # somebody reloads the page of an answer
    reached = connectivity.reach(broker=registration.one(broker_id=broker_id))
    return _detail(request, broker_id, reached=reached)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_READ)
def discover(request: SignedIn, broker_id: int) -> HttpResponse:
    """Ask the broker what it has, once somebody presses the button."""
    broker = registration.one(broker_id=broker_id)
    if request.method != "POST":
        return render(request, "brokers/ask.html", {"broker": broker})
    return _discover(request, broker)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Scope.BROKERS_WRITE)
def observe(request: SignedIn, broker_id: int) -> HttpResponse:
    """Observe what is chosen of what the broker has."""
    if request.method != "POST":
        return redirect("broker-discover", broker_id)  # the page of a refusal, reloaded
    broker = registration.one(broker_id=broker_id)
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
    """Register what was chosen, and observe what of it has a dead-letter queue."""
    principal, now = request.user.principal, clock.now()
    found = brokers.chosen(
        broker,
        request.POST.getlist("topics"),
        principal,
        everything="everything" in request.POST,
    )
    if not found:
        raise Invalid("topics", "choose at least one of them.")
    topics = registration.adopt_topics(
        broker=broker, topics=found, principal=principal, now=now
    )
    return lane_settings.observe_all(topics=topics, principal=principal, now=now)


def _detail(
    request: SignedIn,
    broker_id: int,
    *,
    reached: Reached | None = None,
) -> HttpResponse:
    principal = request.user.principal
    found = brokers.one(broker_id, principal, now=clock.now())
    context = {
        "found": found,
        "row": found.row,
        "broker": found.row.broker,
        "may_write": principal.may(Scope.BROKERS_WRITE),
        "reached": reached,
        "curl": curl.post(request, f"{API}/{broker_id}/test", {}),
    }
    return render(request, "brokers/detail.html", context)


def _form(
    request: SignedIn,
    form: BrokerForm,
    broker: Broker | None = None,
    *,
    wrong: Invalid | None = None,
) -> HttpResponse:
    context = {
        "form": form,
        "broker": broker,
        "offered": brokers.offered_kinds(),
        "example": adapters.kind_named(broker.kind).url if broker else "",
        "wrong": wrong,
        "wrong_at": field_of(wrong),
        # An address is not shown again, so whoever gave one has to give it once more.
        "again": wrong is not None and form.url != form.shown_url,
    }
    status = errors.status_of(wrong) if wrong else 200
    return render(request, "brokers/form.html", context, status=status)


def _discover(
    request: SignedIn, broker: Broker, *, wrong: PoisonwebError | None = None
) -> HttpResponse:
    principal, name = request.user.principal, request.POST.get("name", "")
    found = None
    try:
        found = brokers.discovered(broker, name, principal, now=clock.now())
    except (Invalid, Refused, Unavailable) as trouble:
        wrong = wrong or trouble
    context = {
        "broker": broker,
        "found": found,
        "name": name,
        "wrong": wrong,
        "may_write": principal.may(Scope.BROKERS_WRITE),
        "curl": curl.get(request, f"{API}/{broker.pk}/discover"),
    }
    status = errors.status_of(wrong) if wrong else 200
    return render(request, "brokers/discover.html", context, status=status)
