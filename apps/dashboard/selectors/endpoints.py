"""The data of the endpoint pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from apps.audit.models import Entry
from apps.brokers.models import Topic
from apps.core.errors import Absent
from apps.core.statement_timeouts import TooSlow, unless_slow
from apps.dashboard.selectors.name_filter import NameFilter
from apps.redelivery import endpoint_figures
from apps.redelivery.endpoint_figures import CallHours, DeliveryBacklog
from apps.redelivery.models import Delivery, Endpoint
from apps.redelivery.querysets import EndpointQuerySet
from apps.redelivery.services.circuit_breaker import breaker_state
from apps.redelivery.topic_requests.topics_that_call_endpoints import topics_that_call
from apps.team.rights import Principal

PAGE_SIZE = 50
MOST_NAMES = 200
MOST_SHOWN = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointRow:
    """An endpoint with its figures; `state` is the name of a pill.

    `next_probe` is None where it is not open, or where a request is its next probe.
    """

    endpoint: Endpoint
    state: str
    next_probe: datetime | None
    backlog: DeliveryBacklog | TooSlow
    calls: CallHours | TooSlow


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointList:
    rows: list[EndpointRow]
    next: str  # the name that the next page comes after; "" on the last page

    @property
    def peak(self) -> int:
        """Return the endpoints' most failures of an hour, the scale of all rows."""
        return max(
            (
                max(row.calls.failed_by_hour, default=0)
                for row in self.rows
                if not isinstance(row.calls, TooSlow)
            ),
            default=0,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointPage:
    """What the page of an endpoint shows; `topics` feed it with requests.

    `has_deliveries` keeps it from going.
    """

    row: EndpointRow
    topics: list[Topic]
    entries: list[Entry]
    has_deliveries: bool


def find(filters: NameFilter, principal: Principal, *, now: datetime) -> EndpointList:
    """List a page of the endpoints that match the filter and are visible."""
    rows = filters.of(_visible(principal)).order_by("name")[: PAGE_SIZE + 1]
    endpoints = list(rows)
    first = endpoints[:PAGE_SIZE]
    more = len(endpoints) > PAGE_SIZE
    return EndpointList(rows=_rows(first, now=now), next=first[-1].name if more else "")


def one(endpoint_id: int, principal: Principal, *, now: datetime) -> EndpointPage:
    """Load an endpoint for its page; raises Absent if it is not visible."""
    endpoint = visible(endpoint_id, principal)
    entries = Entry.objects.filter(subject=f"endpoint:{endpoint.name}")
    return EndpointPage(
        row=_rows([endpoint], now=now)[0],
        topics=topics_that_call([endpoint], principal)[endpoint.pk],
        entries=list(entries.order_by("-seq")[:MOST_SHOWN]),
        has_deliveries=has_deliveries(endpoint),
    )


def visible(endpoint_id: int, principal: Principal) -> Endpoint:
    """Find an endpoint; raises Absent if the principal sees none with this id."""
    endpoint = _visible(principal).filter(pk=endpoint_id).first()
    if endpoint is None:
        raise Absent(f"There is no endpoint {endpoint_id} here.")
    return endpoint


def has_deliveries(endpoint: Endpoint) -> bool:
    """Tell whether an endpoint has deliveries, so that it cannot be removed."""
    return Delivery.objects.filter(endpoint=endpoint).exists()


def names(principal: Principal) -> list[str]:
    """List the names of visible endpoints to choose from, A to Z, up to a limit."""
    endpoints = Endpoint.objects.matching(principal.topics).order_by("name")
    return list(endpoints.values_list("name", flat=True)[:MOST_NAMES])


def topics_with_a_broker(principal: Principal) -> list[str]:
    """List the names of visible topics with a broker, to forward to, up to a limit."""
    topics = Topic.objects.matching(principal.topics).exclude(broker=None)
    return list(topics.order_by("name").values_list("name", flat=True)[:MOST_NAMES])


def _visible(principal: Principal) -> EndpointQuerySet:
    return Endpoint.objects.matching(principal.topics).with_related_rows()


def _rows(endpoints: Sequence[Endpoint], *, now: datetime) -> list[EndpointRow]:
    """Build the rows of endpoints, each with state, backlog and calls by the hour."""
    ids = [endpoint.pk for endpoint in endpoints]
    counted = unless_slow(lambda: endpoint_figures.backlogs(ids))
    backlogs = {} if isinstance(counted, TooSlow) else counted
    calls = unless_slow(lambda: endpoint_figures.call_hours(ids, now=now))
    return [
        EndpointRow(
            endpoint=endpoint,
            state=_state(endpoint),
            next_probe=endpoint_figures.next_probe(
                endpoint, backlogs.get(endpoint.pk), now=now
            ),
            backlog=(counted if isinstance(counted, TooSlow) else counted[endpoint.pk]),
            calls=calls if isinstance(calls, TooSlow) else calls[endpoint.pk],
        )
        for endpoint in endpoints
    ]


def _state(endpoint: Endpoint) -> str:
    if not endpoint.is_enabled:
        return "disabled"
    return "breaker open" if breaker_state(endpoint) == "open" else "enabled"
